"""Features beyond training, translation and scores. The core never imports them."""

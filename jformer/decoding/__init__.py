"""From a trained model to text: search over a step function, and sentences in, sentences out."""

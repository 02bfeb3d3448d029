"""accelerate's and transformers' own tests of DeepSpeed, run from checkouts."""

"""What ``dsconfig explain`` says, and the reference pages that say the same."""

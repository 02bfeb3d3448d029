"""An estimate for people: in the terminal, as a picture, as a page."""

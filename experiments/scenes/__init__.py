"""Recognising scenes where what is looked at takes time to compute: Figure 3 of the paper."""

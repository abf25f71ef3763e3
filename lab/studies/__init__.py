"""Studies: a grid of trainings with seeds, evaluated alike, with a table that says what differs
from chance.
"""

"""Length studies: loss by position, relative effective context length, attention by distance; peak
memory.
"""

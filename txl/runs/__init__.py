"""What programs do, as functions of settings: a training is settled and run, splits are scored, a model is
measured.
"""

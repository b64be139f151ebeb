from .schedule import *

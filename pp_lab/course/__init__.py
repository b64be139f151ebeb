"""The course room: exercises and their checks, release, doctor."""

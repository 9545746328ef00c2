"""A trainer that stands at a step for as long as a test wants (tests/fault/fault_step.c); it prints a line for each step."""
import pathlib

from support import preload


class Stand:
    def __init__(self, file, step=1):
        """step: the first one at which the trainer stands."""
        self.file = pathlib.Path(file)
        self.at(step)

    def env(self, *more):
        """Variables of the trainer, with these other libraries of tests/fault."""
        return {**preload("fault_step", *more), "FAULT_STEP_FILE": str(self.file)}

    def at(self, step):
        """From now on the trainer stands at this step, or at the first one after it; what stands at an earlier one goes on."""
        new = self.file.with_name(self.file.name + ".new")
        new.write_text(str(step))
        new.rename(self.file)

    def go(self):
        """It stands no longer."""
        self.file.unlink(missing_ok=True)

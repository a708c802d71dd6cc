import fsvi
from scenarios import classifier, copied, points, same_bits


class Recorder(fsvi.training.Callback):
    def __init__(self):
        self.calls = []

    def on_train_begin(self, state):
        self.calls.append("begin")

    def on_step_end(self, state):
        self.calls.append(("step", state.step, sorted(state.terms)))

    def on_epoch_end(self, state):
        self.calls.append(("epoch", state.epoch, state.history.epochs))

    def on_train_end(self, state):
        self.calls.append("end")


def test_callbacks_are_called_in_order():
    recorder = Recorder()
    fsvi.fit(classifier(), points(), epochs=2, batch_size=10, callbacks=[recorder])
    steps = [("step", number, ["kl", "nll"]) for number in (1, 2, 3, 4)]
    assert recorder.calls == ["begin", *steps[:2], ("epoch", 1, 1), *steps[2:], ("epoch", 2, 2), "end"]


def test_a_callback_can_stop_training():
    def stop(state):
        if state.epoch == 2:
            state.stop()

    stopped, short = classifier(), classifier()
    history = fsvi.fit(stopped, points(), epochs=5, schedule=None, callbacks=[stop])
    fsvi.fit(short, points(), epochs=2, schedule=None)
    assert history.epochs == 2
    assert same_bits(copied(stopped), copied(short))

"""Wrong attempts at the exercise of chapter 00, each with words that the verdict must hold."""

from helpers.lessons.exercises.chapter_00 import Triple


class PassesOn(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class OnlyTheSlope(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 0 + 3


class WrongSign(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return -3 * grad_output


class ForgetsReturn(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        3 * grad_output


ATTEMPTS = {
    "0.1": [
        (PassesOn, "it is 0.3333 times"),
        (OnlyTheSlope, "the gradient of `x` is 3 at"),
        (WrongSign, "wrong sign"),
    ],
}

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


class MultipliesInPlace(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.mul_(3)


class FlattensTheGradient(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return (3 * grad_output).view(-1)


class HalvesThePrecision(Triple):
    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output.float()


class NotStatic(Triple):
    def backward(self, grad_output):
        return 3 * grad_output


ATTEMPTS = {
    "0.1": [
        (PassesOn, "multiplied by 0.333"),
        (OnlyTheSlope, "does not depend on grad_output"),
        (WrongSign, "negated"),
        (ForgetsReturn, "Is a `return` missing in `backward`?"),
        (MultipliesInPlace, "changes grad_output in place"),
        (FlattensTheGradient, "shape"),
        (HalvesThePrecision, "float32"),
        (NotStatic, "`backward` must be a static method"),
        (Triple.apply, "give check the class Triple itself"),
        (3.0, "got a value of type float"),
    ],
}

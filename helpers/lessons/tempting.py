"""What a wrong prediction has for it, and why it is wrong all the same.

It stands here because the cell that asks is read before.
"""

from helpers.lessons.language import N_

# By the `tempting` of a cell, then by the prediction.
TEMPTING = {
    "0 corner": {
        (1, 0.5): N_(
            "That is the slope. But autograd adds the slopes of two steps, each with a "
            "corner at 0, where it takes a convention."
        ),
        (1, 1): N_(
            "Before version 2.14, it was. Now `clamp` has slope 0 at its corner."
        ),
    },
    "0 elsewhere": {
        "clamp": N_(
            "`log` is nan at 100, but 100 is not among the points. 0 is one of them."
        ),
        "both": N_(
            "100 is not among the points. But 0 is one of them: what is the slope?"
        ),
        "neither": N_("`log` is nan at 100. But 100 is not among the points."),
    },
    "1 edges": {
        2: N_("Two operations use `h`. But the product uses it twice: two edges."),
        1: N_("Each use of `h` is an edge. Its node stands in the graph once."),
    },
    "1 apply": {
        0: N_(
            "`apply` passes the node as the first argument, and the node has "
            "`save_for_backward`: two methods without a constant run."
        ),
        1: N_(
            "The first derivative of `LinearToday` is right. So is the second: today's "
            "`saved_tensors` have a history."
        ),
        4: N_(
            "You made an instance, but `apply` passes the node as `self`. The node has "
            "no `target`."
        ),
    },
    "1 shared": {
        108: N_("The instance has one place for both calls. 9 came after 3."),
        36: N_("The second call came last, and left its 9."),
        18: N_("Each square has a node of its own, and both multiply."),
    },
    "2 asked": {
        (1, 0, 1): N_(
            "`grad` asks for one gradient, but `backward` looks at `needs_input_grad`, "
            "which was settled when `forward` ran."
        ),
    },
    "2 loss": {
        0.2: N_(
            "The weight learns as it should, but with centred pixels only the bias can "
            "say that eights are rare."
        ),
        0.4: N_(
            "Only one number of 65 is slow, but with centred pixels it alone can say "
            "that eights are rare."
        ),
        0.8: N_("The bias moves in the right direction, only too slowly."),
    },
    "2 no sum": {
        "an error": N_(
            "The engine does compare the shapes. But (2,) broadcasts to (4, 2), and "
            "then it sums."
        ),
        "a wrong gradient": N_("The engine sums over the rows, as you would have."),
    },
    "2 rows": {
        ("right", "wrong"): N_(
            "With one column there is nothing to sum. But (3, 1) is no shape for (3,)."
        ),
        ("right", "right"): N_(
            "The engine knows shapes. That `bias` became a column, it does not know."
        ),
        ("error", "right"): N_(
            "(3,) does fit (3, 3), but at the last dimension: the engine sums over "
            "the rows, and not along each row."
        ),
        ("error", "error"): N_(
            "(3,) broadcasts to (3, 3), so the engine finds nothing wrong there."
        ),
        ("wrong", "wrong"): N_(
            "(3,) does not broadcast to (3, 1), and the engine says so."
        ),
    },
    "3 returns": {
        "none": N_("D returns one value too many, but it is a `None` at the end."),
        "CD": N_("C returns a gradient where `forward` has no argument."),
        "BD": N_("B has the right count, but its second value belongs to a number."),
    },
    "3 step": {
        "neither": N_(
            "No gradient arrives, but weight decay pulls at `x` in every step that is "
            "taken. With zeros, it is taken."
        ),
        "both": N_("Where the gradient is `None`, the optimizer skips the step."),
    },
    "3 alive": {
        "neither": N_(
            "The view has no `grad_fn` of its own. But it refers to the tensor whose "
            "memory it shows, which is the output."
        ),
        "InputOnCtx": N_(
            "The input does not refer to the output, so the arrows form no ring."
        ),
        "both": N_(
            "The view refers to the output, whose memory it shows. An input does not "
            "refer to the output."
        ),
    },
    "3 steps": {
        ("smaller", "larger"): N_(
            "That is the outcome between the two. Behind `classifier`, its own "
            "gradient has passed the minus sign as well."
        ),
        ("larger", "smaller"): N_(
            "The gradient of `features` comes through `classifier`, so it has passed "
            "the minus sign, too."
        ),
    },
    "4 counts": {
        (2, 1, 1, 1): N_(
            "`ExpOfInput` saves its input, and the square saves the result: two tensors."
        ),
        (2, 2, 1, 2): N_(
            "`Exp` and the square save the same tensor, which counts once."
        ),
        (2, 1, 1, 2): N_(
            "What `ExpOfInput` saves, its input, nobody else keeps; what `Exp` saves, "
            "the square keeps anyway."
        ),
    },
    "4 step": {
        (1e-15, 1e-15): N_(
            "The formula gets better and better, but the two values agree in almost "
            "all of their digits, and so their difference has hardly any."
        ),
        (1e-10, 1e-10): N_(
            "The formula is better there, but the rounding of the two values is "
            "divided by `h`, and grows."
        ),
        (1e-3, 1e-3): N_(
            "Rounding hardly counts there. But for `exp`, the error of the formula is "
            "a hundred times smaller at a step ten times smaller."
        ),
        (1e-5, 1e-5): N_(
            "Right for `exp`. For the square, which error has the formula itself?"
        ),
        (1e-5, 1e-10): N_(
            "Right for `exp`. For the square, which error has the formula itself?"
        ),
        (1e-5, 1e-15): N_(
            "Right for `exp`. For the square, which error has the formula itself?"
        ),
    },
    "4 clip": {
        "neither": N_(
            "`gradcheck` sends only ones and zeros, and a clip at ±1 leaves them alone."
        ),
        "Ignores and Clips": N_(
            "A zero is sent, too, and `Ignores` does not answer 0."
        ),
        "Ignores": N_(
            "A zero is sent, too, and `Ignores` does not answer 0. What `Clips` does "
            "wrong begins beyond ±1."
        ),
    },
    "4 tuple": {
        "a failure": N_(
            "It would, if -3 arrived at `Clips`. But Python does not multiply what is "
            "in a tuple: it repeats the tuple, here no times."
        ),
    },
    "5 call": {
        "none": N_(
            "The second derivative is a constant, which no `x` has made. So there is "
            "no history to record."
        ),
        "second": N_("The first derivative is x + x, which has a history."),
        "first": N_("`x` requires a gradient, so x · x has a history."),
    },
    "5 term": {
        (100, 50): N_(
            "The factor sinh x is the output, which comes with its history. What comes "
            "without one are the two exponentials."
        ),
        (0, 0): N_("`gradcheck` passes, but it compares first derivatives only."),
        (100, 100): N_(
            "The factor sinh x is the output, which comes with its history."
        ),
        (0, 100): N_(
            "At 10, the two terms are nearly equal, and only one of them is missing."
        ),
        (50, 50): N_("At 10, the two terms are nearly equal. Is one of them 0 at 0?"),
    },
    "5 checks": {
        (False, True, False): N_(
            "`3x` is not the derivative. But its own derivative is followed, and that "
            "is all that `gradgradcheck` asks."
        ),
        (True, True, True): N_(
            "`save_for_backward` gives an intermediate back as it went in, without a "
            "history."
        ),
        (True, False, False): N_(
            "The first derivative of `SinhSaved` is right, with or without a history."
        ),
        (False, True, True): N_(
            "`gradgradcheck` takes the first derivative as given, right or wrong. And "
            "an intermediate comes back without a history."
        ),
    },
    "5 penalty": {
        "w1 and w2": N_(
            "The layer after the activation is reached through `grad_output`, and that "
            "edge is there."
        ),
        "penalty": N_("The penalty itself needs first derivatives only."),
        "penalty and w1": N_("The penalty itself needs first derivatives only."),
        "w2": N_(
            "The missing edge leads from the activation back to its input. Which layer "
            "stands there?"
        ),
        "penalty, w1 and w2": N_(
            "The penalty needs first derivatives only, and `w2` is reached through "
            "`grad_output`, whose edge is there."
        ),
    },
    "6 holder": {
        (5, 6): N_("`state_dict()` goes by names, and `child` has two of them."),
        (7, 8): N_(
            "`parameters()` counts a parameter once, whatever its names. And the layer "
            "in the Python list is nobody's child."
        ),
        (7, 10): N_(
            "The layer in the Python list is nobody's child. And `parameters()` counts "
            "a parameter once, whatever its names."
        ),
        (5, 5): N_("A buffer is saved, too, and `child` is saved under both names."),
        (3, 6): N_("An `nn.ModuleList` is a module: its layers count."),
    },
    "6 notes": {
        "weight": N_(
            "The name is reserved as it should be. But `False` is not `None`, so the "
            "last line of `__init__` runs."
        ),
        "weight and bias": N_(
            "`bias=False` takes the other branch, and no bias is made. The last line "
            "asks for it all the same."
        ),
    },
    "6 seen": {
        (6, 6): N_("Each call of a Function gets a new `ctx`, which has seen nothing."),
        (6, 8): N_("Each call of a Function gets a new `ctx`, which has seen nothing."),
        (2, 8): N_("In evaluation, `Counter` does not count."),
    },
    "6 dict": {
        (2, 2): N_("A `state_dict` is no copy: its tensors share the module's memory."),
        (4, 6): N_(
            "The first change is in place. The second gives the module another tensor, "
            "of which the dict knows nothing."
        ),
        (2, 4): N_("A `state_dict` is no copy: its tensors share the module's memory."),
    },
    "6 frozen": {
        (False, False, False): N_(
            "Freezing keeps the parameters from training. A running mean is no "
            "parameter: `forward` changes it."
        ),
        (True, False, False): N_(
            "`no_grad` stops the recording, not the computing, and the running mean is "
            "computed."
        ),
        (True, True, True): N_("`eval()` tells the module to use what it has."),
    },
    "7 grid": {
        (2, 1): N_("So it is without the line. But where does block 1 begin now?"),
        (2, 0): N_("Thread 2 of block 0 is the first that writes element 2."),
        (0, 0): N_("In block 0, nothing has changed: `i` is the number of the thread."),
    },
    "7 owner": {
        (2, 8): N_("Block 5 begins at pixel 8. Thread (1, 0) is one further."),
        (9, 2): N_("Right, but the plane comes first here, and in the array."),
        (1, 9): N_(
            "A block is two planes high, and block 5 is in the second row of blocks."
        ),
    },
    "7 reads": {
        (31, 32, 33, 39, 40, 41): N_(
            "31 and 39 lie before 32 and 40 in memory, but at the other end of the row above."
        ),
        (32, 33, 34, 40, 41, 42): N_(
            "Thread 40 is in column 0: one column to the left is outside."
        ),
    },
    "7 columns": {
        6: N_(
            "The taps to the left of column 0 are wrong. And those to the right of column 7?"
        ),
        10: N_(
            "In two corners a tap leaves the array. But it is not the only one there."
        ),
        0: N_("The tap to the left of column 0 is an element, of the row above."),
    },
    "7 slip": {
        "emulator": N_("The wrong column is less than 3, so it lies inside the array."),
        "neither": N_(
            "No access is forbidden. But the numbers are those of other pixels."
        ),
    },
    "8 close": {
        "equal": N_(
            "The steps are the same. But which type has `state`, here and there?"
        ),
        "other": N_("Rounding moves the last digits only."),
    },
    "8 columns": {
        "smoothed columns": N_(
            "So the Python loop would do. But C gets an address and no strides, and "
            "walks along the memory, where the rows lie."
        ),
        "noise": N_(
            "Every result lies where its input lies, because `y` has the strides of "
            "`x`. Only the direction is wrong."
        ),
    },
    "8 formula": {
        "an error": N_(
            "An operator that `custom_op` makes would raise. This one warns."
        ),
        "a gradient": N_("Autograd cannot look into C++, and nobody has told it."),
    },
    "8 fake": {
        "ABC": N_(
            "Shape and dtype are right in all three. But the C++ makes its input "
            "contiguous, and A keeps the strides of `photo.mT`."
        ),
        "AB": N_(
            "Shape and dtype are right. But the C++ makes its input contiguous, and A "
            "keeps the strides of `photo.mT`."
        ),
        "B": N_("C promises the same strides as B, in two steps."),
    },
    "9 graphs": {
        2: N_(
            "One before SciPy, and one after it. But a graph also ends where `forward` "
            "begins and where it ends."
        ),
        3: N_("`forward` alone makes two: one before SciPy, and one after it."),
        1: N_("SciPy has no place in a graph, so there is a piece on either side."),
    },
    "9 nan": {
        "A and B": N_(
            "In `B`, the `where` chooses the denominator, so nothing divides by 0."
        ),
        "C": N_(
            "Its divisor is at least 1. What `where` does not take is computed all the "
            "same, and has a gradient."
        ),
        "all three": N_(
            "A nan needs a division by 0. The divisors of `B` and `C` are at least 1."
        ),
        "B": N_(
            "In `B`, the `where` chooses the denominator, so nothing divides by 0. What "
            "does the `where` of `A` choose?"
        ),
    },
    "9 means": {
        (2.5, 3.5): N_(
            "Those are means of columns. The kernel copies, so the rows stay rows. Only "
            "their length is wrong."
        ),
        (2, 5): N_(
            "The sums are those of the kernel. But the number of columns was read when "
            "the function was traced, from the fake kernel."
        ),
    },
    "9 shapes": {
        (1, 2, 2, 2): N_(
            "For the second length, a symbol would take the place of the number. But a "
            "symbol stands for sizes from 2 on, and the second length is 1."
        ),
        (1, 2, 3, 4): N_("4 gets a symbol, and a symbol serves 5 as well."),
        (1, 1, 1, 1): N_(
            "The first graph holds the number 3: nobody knew that it would change."
        ),
    },
    "9 export": {
        (-3, -3): N_(
            "`backward` of the Function is not in the file: the exporter wrote down "
            "what `forward` computes."
        ),
        (3, 3): N_(
            "The operator is in the file by its name, to which a gradient belongs."
        ),
        (-3, 3): N_(
            "It is the other way round: the exporter looks into a Function, and not "
            "into an operator."
        ),
    },
    "10 calls": {
        (1, 1437): N_(
            "All scans are in the tensor, but `vmap` hides its dimension from "
            "`forward`, which sees one scan."
        ),
        (1437, 1): N_(
            "What stands inside `vmap` sees one scan. But it is called with all of them."
        ),
    },
    "10 hessian": {
        "right": N_(
            "In reverse mode it would be: `Exp` has a `backward`. But `hessian` is forward "
            "over reverse."
        ),
        "wrong": N_("A missing `jvp` is an error, not a zero."),
    },
    "10 front": {
        "right": N_(
            "For `in_dims=0`, yes. Here the batch is dimension 1 of the result."
        ),
        "raises": N_("The dimension exists, and its size is that of the batch."),
    },
    "10 nested": {
        0.5: N_("That was the square. In a cube, two of three factors are followed."),
        1 / 3: N_("One factor is taken for a constant: `tangent * result`."),
        0: N_(
            "Nothing is left of the exponential alone. A power has PyTorch's own rule."
        ),
    },
    "11 rejected": {
        "ReadsMemory": N_("`gradcheck` hands over a `grad_output` that is contiguous."),
        "ChangesGradOutput": N_("Nobody else reads the `grad_output` of `gradcheck`."),
        "SavesOnTheClass": N_("`gradcheck` never makes a second call in between."),
        "NaiveSoftplus": N_("`gradcheck` wants float64, where nothing overflows."),
    },
    "11 in place": {
        3: N_("Each gradient is right alone. But both branches got the same tensor."),
        2: N_("The other branch adds a gradient of its own, which was doubled, too."),
    },
    "11 rounds": {
        0.8: N_("So it is on average. Which of the first 18 digits have a label?"),
        1.25: N_("It divides by too large a number, so the gradient is too small."),
        0.2: N_("A fifth has no label; four fifths have one."),
    },
    "11 anomaly": {
        ("LogBackward0", None): N_(
            "The nan is born in the logarithm, but the backward pass comes to the sine "
            "first."
        ),
        ("LogBackward0", "SqrtBackward0"): N_(
            "The backward pass comes to the sine first. And an infinite gradient is "
            "not nan."
        ),
        ("SinBackward0", "SqrtBackward0"): N_("An infinite gradient is not nan."),
    },
    "12 units": {
        72: N_(
            "Two operations a layer. But the result of `tanh` is the input of the next "
            "product, and one tensor is kept once."
        ),
        37: N_("The data are there anyway, and are not counted."),
    },
    "12 segment": {
        (6, 2): N_(
            "One input is kept. But the second run of all layers keeps everything."
        ),
        (6, 1): N_(
            "One input is kept. But the second run of all layers keeps everything."
        ),
        (1, 36): N_("Every layer keeps its input: as much as without segments."),
        (36, 1): N_(
            "One input is kept. But the second run of all layers keeps everything."
        ),
        (36, 2): N_(
            "One input is kept. But the second run of all layers keeps everything."
        ),
    },
    "12 batches": {
        (2, 2): N_(
            "Both run the block twice. But the second run of `recompute` gets copies "
            "of the module's buffers."
        ),
        (1, 1): N_(
            "One batch came. But `checkpoint` runs the block twice, and a batch norm "
            "counts its runs."
        ),
    },
    "12 logits": {
        1: N_(
            "The logits are one. What does the softmax make, and what the backward pass?"
        ),
        2: N_(
            "So many at the end of the forward pass. Then the logits are freed, and the "
            "backward pass makes two more."
        ),
    },
    "13 sign": {
        1: N_("That is what the formula says, in numbers with enough digits."),
        0: N_(
            "So it would be if −3001 were rounded to −3002. Which is a multiple of 4?"
        ),
        3002: N_(
            "The value is meant to be that of the step; `x` is added and subtracted."
        ),
    },
    "13 clamp": {
        (-3.8, 0.4, 2.8): N_(
            "These lie in the range. But `clamp` does not see the weights: it sees the "
            "rounded numbers."
        ),
        (-4.2, -3.8, 0.4, 2.8, 3.4): N_(
            "So it would be if `clamp` had the slope 1 at its ends. There it is 0."
        ),
        (-4.2, -3.8, 0.4, 2.8): N_(
            "So it would be if `clamp` had the slope 1 at its ends. There it is 0."
        ),
        (0.4, 2.8): N_("2.8 is rounded to 3, which is a bound, too."),
        (-3.8, 0.4): N_("-3.8 is rounded to -4, which is a bound, too."),
    },
    "13 export": {
        (1, 1): N_(
            "The values are the same. But `detach` is an instruction to autograd, and "
            "lowering preserves only values."
        ),
        (0, 0): N_("Plain operations have no `backward` to lose when exported."),
    },
    "13 start": {
        0: N_(
            "The value is right. But the loop has ended after one step, and autograd "
            "goes back through the steps that it has seen."
        ),
        10: N_(
            "The loop has ended after one step, which carries less than half of the "
            "gradient."
        ),
        100: N_(
            "The loop has ended after one step. That step alone carries a part of the "
            "gradient."
        ),
    },
    "13 several": {
        "converges": N_(
            "The forward pass starts at the solution. The backward pass does not: each of "
            "its steps multiplies the error by 3."
        ),
    },
    "13 shift": {
        "neither": N_(
            "That is true of the gradient of the expectation. A single estimate is the "
            "cost times a random number."
        ),
        "mean": N_("The 100 is multiplied by a random number whose mean is 0."),
        "both": N_("The 100 is multiplied by a random number whose mean is 0."),
    },
    "14 count": {
        1: N_("One would be right, and `backward` would then raise an error."),
        4: N_("Each process has its own tensor, which was written once."),
    },
    "14 slopes": {
        (3, 30): N_("Each of the two is right for the other program."),
        (12, 30): N_("`HandOn` hears of one loss only, its own."),
        (3, 9): N_("`SumAgain` adds the gradients of four losses that are one."),
    },
    "14 mirror": {
        1: N_("Two: turn the arrows of an all-to-all around, and it is one again."),
        3: N_("In a mirror, the halo exchange adds the borrowed rows."),
    },
    "14 sum": {
        (1, 0.25): N_(
            "That would be right if DDP added the gradients. It averages them."
        ),
        (1, 4): N_(
            "The average of means is the mean of all. The average of four sums is a "
            "quarter of their sum."
        ),
        (4, 4): N_("For a mean it is 1: the average of means is the mean of all."),
        (1, 1): N_("DDP averages: of a sum over all, a quarter is left."),
    },
    "14 strides": {
        (0, 4): N_(
            "`dist.all_reduce` adds what lies in memory, element by element, and "
            "process 1 stores other elements there."
        ),
        (0, 5): N_(
            "That is what the other processes see. Process 1 reads the same memory by "
            "columns."
        ),
    },
    "15 loads": {
        9.4: N_("One load for each multiply-add: but it reads a pixel and a weight."),
        9.7: N_(
            "That is the floor of the bytes. A load from a cache moves none of them."
        ),
    },
    "15 constants": {
        4.6: N_(
            "That is what the instructions gain. Which limit is the largest afterwards?"
        ),
        6.3: N_("That would be the floor of the bytes. Which limit is above it?"),
    },
    "15 weight": {
        2.0: N_("That was one channel a thread. Now 16 channels share each weight."),
        0.125: N_("The weight is shared by the channels, the pixel is not."),
    },
    "15 columns": {
        4: N_(
            "Eight columns are four pairs, if the first column is even. w - 3 is odd."
        ),
        8: N_("One load brings two columns."),
    },
    "15 waits": {
        1: N_("Three counts say so. They all assume that something always runs."),
        13.6: N_("The three warps of a scheduler wait at the same time."),
    },
    "15 owns": {
        16: N_(
            "It has the fewest loads and instructions, and the fewest loads in flight."
        ),
        2: N_("It keeps the most loads in flight: more than 31 of them gain nothing."),
    },
    "15 order": {
        "CEP": N_("One addition after the other: but which one is first?"),
        "C": N_(
            "The partial sums are added in another order than the rows of `by_columns`, "
            "but in the same order each time."
        ),
    },
    "16 wheel": {
        3: N_(
            "Those of `src`. One more file has to travel with every copy: the licence."
        ),
        6: N_(
            "The C++ is compiled before the wheel is packed. The library is there, its "
            "source is not."
        ),
    },
    "16 tags": {
        "A": N_("`abi3` promises every later Python, too."),
        "ABD": N_("3.10 is older than `cp311`."),
        "ABCD": N_("The third tag names a system, and the first the oldest Python."),
    },
    "16 data": {
        "neither": N_(
            "A folder without `__init__.py` is a namespace package, which the builder "
            "finds, too."
        ),
        "both": N_("The builder packs the Python files. What is a table in JSON?"),
        "decays.json": N_(
            "So it was in the folder. The builder packs the Python files."
        ),
    },
    "16 names": {
        "C and Python": N_(
            "`torch.ops.load_library` loads the file: Python never imports it."
        ),
        "C++": N_("The headers are C++, and what they call is C."),
        "C++ and C": N_("The headers are C++, and what they call is C."),
    },
    "16 name": {
        (0.43, 0.57): N_("Its own code did not change. The operator of its name did."),
        "an error": N_("`custom_op` replaces without a question."),
    },
    "16 renamed": {
        ("right", "right"): N_("A file holds the argument by its old name."),
        ("right", "raises"): N_("A name that the schema does not have is dropped."),
        ("raises", "raises"): N_("One of the two files holds no argument at all."),
    },
    "17 sum": {
        3000: N_("So it is if the sum is kept in float32. Here each step is rounded."),
        1023: N_("Up to 1,024, neighbours are 4 apart: 1,023 is none of them."),
        1026: N_("From 1,024 on neighbours are 8 apart: 1,026 is none of them."),
        256: N_("From 256 on neighbours are 2 apart, and 3 is more than half of that."),
        512: N_("From 512 on neighbours are 4 apart, and 3 is more than half of that."),
        768: N_("Each 3 is rounded: to more than 3 as well."),
        2048: N_(
            "From 1,024 on neighbours are 8 apart, and 3 is less than half of that."
        ),
    },
    "17 second": {
        "only gradcheck": N_(
            "The second derivative is wrong. But `gradgradcheck` measures a wrong one, too."
        ),
        "neither": N_("At 0.5, 1 and 2 the copy in 16 bits is exact."),
        "only gradgradcheck": N_("At 0.5, 1 and 2 the copy in 16 bits is exact."),
    },
    "17 training": {
        "AC": N_(
            "bfloat16 loses no gradient. But small steps get lost in its weights."
        ),
        "BC": N_("Without a loss scale, every gradient underflows in float16."),
        "AE": N_("bfloat16 has three bits less than float16, which small steps need."),
    },
    "18 unit": {
        "metres": N_("That is what it should be. Who would have told the class?"),
        "square metres": N_("Autograd ran below the class, and nobody set a unit."),
    },
    "18 type": {
        3: N_("For the gradient of `D`, both factors are plain tensors."),
        1: N_("The gradient of `x` is a product with `D`, too."),
    },
    "18 other way": {
        ("Tensor", "Tensor"): N_(
            "So it would be if the engine could add the two. It adds a `Diagonal` to a "
            "dense gradient, and that sum is not in the table."
        ),
        ("Tensor", "Diagonal"): N_(
            "The first is right. For the second, the engine has to add a dense gradient "
            "to a `Diagonal`, and that sum is not in the table."
        ),
        ("Diagonal", "Diagonal"): N_(
            "`x @ D` does not pass `F.linear`, so your rule does not meet it."
        ),
        ("raises", "raises"): N_(
            "The table has `mm`, so `x @ D` runs, and autograd has a formula for its "
            "gradient."
        ),
    },
    "18 version": {
        "B": N_("Nothing was written. But which name had the operation?"),
        "BC": N_(
            "The gradient belongs to the forward pass, in which the fallback is right. "
            "And autograd counts by the name of the operation."
        ),
        "C": N_(
            "The gradient belongs to the forward pass, in which the fallback is right."
        ),
    },
    "19 dropped": {
        "neither": N_(
            "Each is right when it is called. A compiler looks for `backward` itself."
        ),
        "of a vmap": N_(
            "The inner gradient becomes a constant, whose derivative is 0."
        ),
        "of a func.grad": N_(
            "Through a `vmap`, the compiler goes into `forward` and misses `backward`."
        ),
    },
    "20 kept": {
        3: N_("Three are made. Which of them does a derivative need?"),
        2: N_("The softmax saves its result, which the product saves, too: it is one."),
    },
    "20 sizes": {
        "none": N_("Near 0, the factor that is forgotten is nearly 1."),
        "near": N_(
            "What is forgotten rescales the first piece. When does it need no rescaling?"
        ),
        "near and late": N_(
            "If the largest score is in the second piece, the first must be rescaled."
        ),
    },
    "20 unguarded": {
        "none": N_("One of the three has no part in `lse`."),
        "q and k": N_("Just these two make the scores, and so `lse`."),
        "q": N_("`q` makes the scores, and so `lse`, which is taken for a constant."),
        "k": N_("`k` makes the scores, and so `lse`, which is taken for a constant."),
    },
    "20 anew": {
        4: N_(
            "One forward and one for each order. But each order goes back through the last."
        ),
        3: N_(
            "One for each order. But each order goes back through all that came before."
        ),
    },
    "20 compiled": {
        12: N_("So it is in eager mode. Nothing says that the compiled one differs."),
        "an error": N_("An error would be kind. The compiler goes on without a word."),
    },
    "21 lines": {
        (4, 2): N_("One for each step. But a product has two gradients."),
        (4, 4): N_("One for each step. But a product has two gradients."),
        (7, 4): N_("The last product uses `t2` and `t3`, and both lead to `x`."),
        (6, 4): N_("A value that is used twice gets a line from each use."),
        (7, 1): N_(
            "But to reach `x`, the gradients of what lies between must be made, too."
        ),
        (3, 1): N_(
            "One for each input. But to reach them, the gradients of what lies between "
            "must be made, too."
        ),
    },
    "21 factor": {
        1: N_(
            "So it would be, if `s` had four rows. Which shape has `grad_output * s`?"
        ),
        3: N_("That is the size of `b`. What is summed over is the other dimension."),
        0.25: N_("So much is left. By which factor is it too small?"),
    },
    "21 seconds": {
        0: N_(
            "`gate` and `up` are taken for constants. But which second derivative is 0 "
            "in any case?"
        ),
        6: N_(
            "The first derivatives are. What do `gate` and `up` lead to, when they come "
            "out of `ctx.saved_tensors`?"
        ),
    },
    "21 slope": {
        1: N_(
            "That is the slope. But the steps are those of the forward, which overflows."
        ),
        0: N_(
            "Dividing by infinity gives 0. But the next step multiplies by infinity."
        ),
    },
}

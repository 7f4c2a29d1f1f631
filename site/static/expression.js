// A line of Python on small tensors: evaluated("g * x.sum(0)", {g, x}). An int is a number here, a
// float a Float, a tuple or list an array. What is not surely done as PyTorch does it is Beyond this
// page, and so is what makes an error here: the course runs it.

const evaluated = (() => {
  class Beyond extends Error {}
  class Wrong extends Error {} // where PyTorch raises an error, too: a kind of the page's sentences
  class Float extends Number {}
  const beyond = (what, more) => { throw Object.assign(new Beyond(what), more); };
  const wrong = (kind, gaps = {}) => { throw Object.assign(new Wrong(kind), { gaps }); };
  const { exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh, abs } = Math;
  const isInt = Number.isInteger; // not of a Float
  const isNumber = value => ["number", "boolean"].includes(typeof value?.valueOf());
  const isTensor = value => value instanceof Tensor;
  const said = shape => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  const misfit = (kind, one, other) => wrong(kind, { one: said(one), other: said(other) });
  const product = list => list.reduce((all, n) => all * n, 1);
  const range = size => Array.from({ length: size }, (_, n) => n);
  const put = (list, at, n) => list.map((old, k) => k === at ? n : old);

  // ---- Tensors

  const LARGEST = 1e5; // elements
  const DTYPES = ["bool", "int64", "float32", "float64"];
  const FLOAT = 2; // the category of both kinds of float
  const category = dtype => Math.min(DTYPES.indexOf(dtype), FLOAT);
  const isFloat = x => category(x.dtype) === FLOAT;
  const rounded = (dtype, n) => dtype === "float32" ? Math.fround(n) : Number(n);

  class Tensor {
    constructor(shape, data, dtype) { Object.assign(this, { shape, data, dtype }); }
    shaped(shape) { return new Tensor(shape, this.data, this.dtype); }
    at(place) { // the element there, if a dimension of size 1 is as long as needed
      return this.data[this.shape.reduce((n, size, dim) =>
        n * size + (size === 1 ? 0 : place.at(dim - this.shape.length)), 0)];
    }
  }
  const built = (shape, dtype, at) => { // at(place) is the element there
    if (product(shape) > LARGEST) beyond(said(shape));
    const place = shape.map(() => 0);
    const data = range(product(shape)).map(() => {
      const element = rounded(dtype, at(place));
      evaluated.overflows ||= abs(element) === Infinity;
      for (let dim = shape.length; dim-- && ++place[dim] === shape[dim];) place[dim] = 0;
      return element;
    });
    return new Tensor(shape, Object.assign(data, { isBuilt: true }), dtype);
  };

  // The dtype in which PyTorch computes is of the highest category: there a tensor with dimensions
  // goes before one without, which goes before a number.
  const NUMBERS = { boolean: "bool", number: "int64", object: "float32" };
  const common = (...values) => {
    const weight = value => {
      const dtype = value?.dtype ?? (isNumber(value) ? NUMBERS[typeof value]
        : typeof value === "function" ? wrong("called") : beyond("…"));
      const rank = !isTensor(value) ? 0 : value.shape.length ? 2 : 1;
      return 100 * category(dtype) + 10 * rank + DTYPES.indexOf(dtype);
    };
    return DTYPES[Math.max(...values.map(weight)) % 10];
  };
  const broadcast = (one, other) => range(Math.max(one.length, other.length)).reverse().map(back => {
    const [a, b] = [one, other].map(shape => shape.at(-1 - back) ?? 1);
    return a === b || b === 1 ? a : a === 1 ? b : misfit("broadcast", one, other);
  });
  const elementwise = (f, dtype, ...values) => { // f of the elements, read and written in a dtype
    const all = values.map(value => isTensor(value) ? value : new Tensor([], [value]));
    const shape = all.map(x => x.shape).reduce(broadcast);
    return built(shape, dtype, place => f(...all.map(x => rounded(dtype, x.at(place)))));
  };

  const indexOf = (size, index, kind, gaps) => !isInt(index) ? beyond(kind)
    : index < -size || index >= size ? wrong(kind, gaps) : (index + size) % size;
  const oneOf = (size, index) => indexOf(size, index, "index", { index, size });
  const dimOf = (shape, dim) => indexOf(Math.max(shape.length, 1), dim, "dim", { dim, shape: said(shape) });
  const dimsOf = (shape, dims) => {
    const all = [dims ?? []].flat().map(dim => dimOf(shape, dim));
    if (new Set(all).size < all.length) beyond("dim");
    return all.length ? all : range(shape.length);
  };
  const picked = (x, dim, rows) => built(put(x.shape, dim, rows.length), x.dtype,
    place => x.at(put(place, dim, rows[place[dim]])));
  const summed = (x, dim = null, keepdim = false) => {
    if (typeof keepdim !== "boolean" || keepdim && dim === null || !isFloat(x) || !x.data.length) beyond("sum");
    const dims = dimsOf(x.shape, dim), all = dims.reduce((left, d) => range(left.shape[d] ?? 1)
      .map(row => picked(left, d, [row])).reduce((a, b) => operated("+", a, b)), x);
    return keepdim ? all : all.shaped(all.shape.filter((_, d) => !dims.includes(d)));
  };

  const reshaped = (x, sizes) => {
    const shape = sizes.map(n => n === -1 ? x.data.length / -product(sizes) : n);
    const isShape = shape.every(n => isInt(n) && n >= 0) && product(shape) === x.data.length;
    return isShape ? x.shaped(shape) : misfit("reshape", x.shape, sizes);
  };
  const turned = x => x.shape.length > 2 ? beyond("T")
    : built([...x.shape].reverse(), x.dtype, place => x.at([...place].reverse()));
  const expanded = (x, sizes) => {
    if (Math.min(...sizes) < 0 || said(broadcast(x.shape, sizes)) !== said(sizes)) beyond("expand");
    return built(sizes, x.dtype, place => x.at(place));
  };
  const unsqueezed = (x, dim) => {
    const at = dimOf([...x.shape, 1], dim);
    return x.shaped([...x.shape.slice(0, at), 1, ...x.shape.slice(at)]);
  };
  const joined = (all, dim = 0) => {
    const [{ shape }] = all.every(isTensor) ? all : beyond("cat"), d = dimOf(shape, dim);
    const other = all.find(x => said(put(x.shape, d, 0)) !== said(put(shape, d, 0)));
    if (other) misfit("broadcast", shape, other.shape);
    const rows = all.flatMap(x => range(x.shape[d]).map(row => place => x.at(put(place, d, row))));
    return built(put(shape, d, rows.length), common(...all), place => rows[place[d]](place));
  };
  const matmul = (a, b) => {
    if (![a, b].every(one => isFloat(one) && one.shape.length < 3) || a.dtype !== b.dtype) beyond("@");
    if (!a.shape.length || a.shape.at(-1) !== b.shape[0]) misfit("matmul", a.shape, b.shape);
    const rows = b.shape.length === 2 ? unsqueezed(a, -1) : a; // beside each column of b
    return summed(operated("*", rows, b), -b.shape.length);
  };

  const sliced = (start, stop, step) => size => { // the indices that a slice takes
    const [from, to, by] = [start ?? 0, stop ?? size, step ?? 1].map(n => isInt(n) ? n : beyond("[:]"));
    return range(size).slice(from, to).filter((_, n) => by > 0 ? n % by === 0 : beyond("[::-1]"));
  };
  const indexed = (x, ...asked) => {
    const isAlone = asked.length === 1;
    if (Array.isArray(x) && isAlone) return x[oneOf(x.length, asked[0])];
    let left = x, d = 0;
    for (const index of asked) {
      const { shape } = left, size = shape[d];
      if (index === null) left = unsqueezed(left, d++);
      else if (d === shape.length) wrong("indices", { shape: said(x.shape) });
      else if (typeof index === "function") left = picked(left, d++, index(size));
      else if (index.isList && isAlone) left = picked(left, d, index.map(row => oneOf(size, row)));
      else left = picked(left, d, [oneOf(size, index)]).shaped(shape.filter((_, k) => k !== d));
    }
    return left;
  };

  // ---- Operators

  const OPERATIONS = {
    "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b,
    "//": (a, b) => Math.floor(a / b), "**": (a, b) => a === 1 ? 1 : a ** b,
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
    "==": (a, b) => a === b, "!=": (a, b) => a !== b,
    "&": (a, b) => a & b, "|": (a, b) => a | b,
  };
  const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];
  const operated = (op, a, b) => {
    if (op === "@") return matmul(a, b);
    const dtype = common(a, b), isWhole = category(dtype) < FLOAT, f = OPERATIONS[op];
    const isOfBits = "&|^".includes(op);
    if (!isTensor(a) && !isTensor(b)) {
      const result = isOfBits || op === "//" && !isWhole ? beyond(op) : f(Number(a), Number(b));
      if (COMPARISONS.includes(op)) return result;
      if (!(abs(result) <= 2 ** 53)) beyond(op); // inexact, or complex
      return isWhole && op !== "/" && !(op === "**" && b < 0) ? result : new Float(result);
    }
    if (COMPARISONS.includes(op)) return Object.assign(elementwise(f, dtype, a, b), { dtype: "bool" });
    if (isOfBits && !isWhole) wrong(op === "^" ? "power" : "bits");
    if (op === "-" && [a, b].some(one => one.dtype === "bool" || typeof one === "boolean")) wrong("minus");
    if (op === "//" || isWhole && !"*&|".includes(op)) beyond(op); // masks are multiplied as they are
    return elementwise(f, dtype, a, b);
  };
  const isTrue = value => isNumber(value) ? Number(value) !== 0
    : value?.data?.length > 1 ? wrong("truth") : beyond("if");
  const negated = value => operated("-", -0, value); // -0.0 of 0.0
  const inverted = value => value?.dtype === "bool" ? elementwise(n => !n, "bool", value)
    : isFloat(value) ? wrong("bits") : beyond("~");

  // ---- Functions, {name: [parameters, f]}. The parameter * is a list, or all that a method is given.

  const clamped = (x, ...bounds) => {
    const [low = -Infinity, high = Infinity] = bounds;
    if (!bounds.length || ![low, high].every(isNumber) || !isFloat(x)) beyond("clamp");
    return elementwise(n => Math.min(Math.max(n, low), high), x.dtype, x);
  };
  const where = (mask, one, other) => {
    const dtype = mask.dtype === "bool" ? common(one, other) : beyond("where");
    return elementwise((m, a, b) => m ? a : b, dtype, mask, one, other);
  };
  const filled = (x, value) => isNumber(value) && isFloat(x)
    ? elementwise(() => value, x.dtype, x) : beyond("…_like");
  const rolled = (x, by, along = null) => {
    if (along === null) return reshaped(rolled(reshaped(x, [-1]), by, 0), x.shape);
    const dim = dimOf(x.shape, along), size = x.shape[dim];
    if (!size || !isInt(by)) beyond("roll");
    return picked(x, dim, range(size).map(i => ((i - by) % size + size) % size));
  };
  const parted = (x, each) => { // parts of a size along the first dimension
    const rows = range(x.shape[0] ?? 0);
    if (!rows.length || !isInt(each) || each < 1) beyond("split");
    return rows.filter(row => row % each === 0).map(row => picked(x, 0, rows.slice(row, row + each)));
  };
  const changed = (functions, made) =>
    Object.fromEntries(Object.entries(functions).map(([name, f]) => [name, made(f, name)]));
  const ofEach = (f, name) => ["x", x => isFloat(x) ? elementwise(f, x.dtype, x) : beyond(name)];
  const OF_BOTH = { // of torch, and methods
    ...changed({ exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh, abs, neg: x => -x, reciprocal: x => 1 / x,
      sigmoid: x => 1 / (1 + exp(-x)), square: x => x * x,
      relu: x => x < 0 ? 0 : x, sign: x => x > 0 ? 1 : x < 0 ? -1 : 0 }, ofEach),
    ...changed({ add: "+", sub: "-", mul: "*", div: "/", pow: "**" }, (op, name) => // or torch.div(1, x)
      ["one other", (a, b) => isTensor(a) || isTensor(b) ? operated(op, a, b) : beyond(name)]),
    ...changed({ minimum: Math.min, maximum: Math.max }, f =>
      ["x tensor", (a, b) => elementwise(f, common(a, b), a, b)]),
    matmul: ["x tensor", matmul],
    logaddexp: ["x tensor", (x, other) =>
      elementwise((a, b) => Math.max(a, b) + log1p(exp(-abs(a - b))), common(x, other), x, other)],
    sum: ["x dim keepdim", summed],
    mean: ["x dim keepdim", (x, ...along) => {
      const all = summed(x, ...along);
      return operated("/", all, x.data.length / all.data.length);
    }],
    clamp: ["x min max", clamped],
    clip: ["x min max", clamped],
    nan_to_num: ["x nan", (x, nan = 0) => x.data.some(n => abs(n) === Infinity) ? beyond("nan_to_num")
      : where(operated("==", x, x), x, filled(x, nan))],
    t: ["x", turned],
    transpose: ["x one other", (x, ...dims) => dimsOf(x.shape, dims) && turned(x)],
    masked_fill: ["x mask value", (x, mask, value) => where(mask, filled(x, value), x)],
    reshape: ["x *", reshaped],
    unsqueeze: ["x dim", unsqueezed],
    flip: ["x *", (x, dims) => dims.length ? dimsOf(x.shape, dims).reduce((all, dim) =>
      picked(all, dim, range(x.shape[dim]).reverse()), x) : beyond("flip")],
    roll: ["x shifts dims", rolled],
    chunk: ["x count", (x, count) => parted(x, isInt(count) ? Math.ceil(x.shape[0] / count) : count)],
    split: ["x each", parted],
    mm: ["x tensor", (a, b) => a.shape.length + b.shape.length < 4 ? beyond("mm") : matmul(a, b)],
  };
  const FUNCTIONS = {
    torch: { __proto__: null, ...OF_BOTH,
      where: ["mask one other", where],
      ...changed({ ones_like: 1, zeros_like: 0 }, n => ["x", x => filled(x, n)]),
      full_like: ["x value", filled],
      cat: ["all dim", joined],
      stack: ["all dim", (all, dim = 0) => joined(all.map(x => unsqueezed(x, dim)), dim)],
    },
    "torch.nn": { __proto__: null },
    "torch.special": { __proto__: null, expit: OF_BOTH.sigmoid },
    method: { __proto__: null, ...OF_BOTH,
      where: ["one mask other", (one, mask, other) => where(mask, one, other)],
      // PyTorch's order in memory is known here of what was given, alone
      view: ["x *", (x, sizes) => x.data.isBuilt ? beyond("view") : reshaped(x, sizes)],
      expand: ["x *", expanded],
      expand_as: ["x tensor", (x, other) => expanded(x, other.shape)],
      size: ["x dim", (x, dim) => indexed(x.shape, dim)],
    },
    "torch.nn.functional": { __proto__: null, relu: OF_BOTH.relu, sigmoid: OF_BOTH.sigmoid,
      ...changed({ silu: x => x / (1 + exp(-x)), softplus: x => x > 20 ? x : log1p(exp(x)),
        logsigmoid: x => Math.min(x, 0) - log1p(exp(-abs(x))) }, ofEach),
    },
  };
  const TENSORS = ["x", "tensor", "mask"]; // parameters that are no numbers
  const ALIASES = { axis: "dim", dims: "*" };
  const called = (of, name, given) => { // given: [keyword or null, value]
    const [signature, f] = FUNCTIONS[of][name], names = signature.split(" "), bound = [];
    for (const [key, value] of given) {
      const n = key ? names.findIndex(one => one === key || one === ALIASES[key]) : bound.length;
      if (n in bound || n < 0) beyond(`${name}(${key}=…)`);
      bound[n] = value;
    }
    if (names[1] === "*" && of === "method" && isInt(bound[1]) && !given[1][0]) bound[1] = bound.splice(1);
    const isMissing = range(f.length).some(n => !(n in bound)); // f.length: those without a default
    const isOdd = names[1] === "*" && !bound[1]?.every?.(isInt);
    if (isMissing || isOdd || bound.length > names.length) beyond(`${name}(…)`);
    if (names.some((one, n) => TENSORS.includes(one) && !isTensor(bound[n]))) wrong("number", { name });
    return f(...bound);
  };
  const length = x => x.shape?.[0] ?? (Array.isArray(x) ? x.length : beyond("len"));
  const NAMES = {
    True: true, False: false, None: null, torch: { path: "torch" }, F: { path: "torch.nn.functional" },
    ...changed({
      len: length,
      abs: OF_BOTH.abs[1],
      sum: x => range(length(x)).map(row => indexed(x, row)).reduce((a, b) => operated("+", a, b), 0),
      float: x => isNumber(x) ? new Float(x) : beyond("float"),
    }, (f, name) => given => given.length === 1 && !given[0][0] ? f(given[0][1]) : beyond(name)),
  };
  const attribute = (value, name) => {
    const module = value?.path, path = `${module}.${name}`;
    if (FUNCTIONS[path]) return { path };
    if (FUNCTIONS[module]?.[name]) return given => called(module, name, given);
    if (module === "torch") FUNCTIONS["torch.nn.functional"][name] ? wrong("functional", { name }) : beyond(name);
    if (module) beyond(path);
    if (!value?.shape) beyond(`.${name}`);
    if (name === "shape") return value.shape;
    if (name === "T" || name === "mT" && value.shape.length === 2) return turned(value);
    return FUNCTIONS.method[name] ? given => called("method", name, [[null, value], ...given]) : beyond(name);
  };

  // ---- The parser: each part becomes a function, to be called when its value is needed.

  const TOKEN = /(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|\*\*|\/\/|[<>=!]=|\S/g;
  const BEGINNING = /^(?!(if|else|and|or|not)$)(\.\d|[\w([])/;
  const LEVELS = [["if"], ["or"], ["and"], [], COMPARISONS, ["|"], ["^"], ["&"], ["+", "-"],
    ["*", "/", "//", "@"], [], ["**"], [".", "(", "["]]; // from what binds least
  const PREFIXES = { __proto__: null, // the empty level of each, and what it does
    not: [3, value => !isTrue(value)], "-": [10, negated], "~": [10, inverted] };
  const later = (f, ...parts) => () => f(...parts.map(part => part()));
  const choice = (test, one, other) => () => isTrue(test()) ? one() : other();
  return Object.assign((source, given) => {
    const scope = { __proto__: null, ...NAMES, ...given };
    const found = [...source.matchAll(TOKEN)], words = found.map(([word]) => word);
    let n = 0;
    const takes = (...signs) => signs.includes(words[n]) ? words[n++] : null;
    const stop = () => beyond(source.slice(found[n]?.index), { isSyntax: true });
    const separated = (part, close) => {
      const parts = [];
      while (!takes(close)) {
        parts.push(part());
        if (!takes(",") && words[n] !== close) stop();
      }
      return parts;
    };
    const named = name => name in scope ? scope[name]
      : name in FUNCTIONS.torch ? wrong("name", { name }) : beyond(name, { isName: true });
    const atom = () => {
      const word = BEGINNING.test(words[n] ?? "") ? words[n++] : stop();
      if (/^\d+$/.test(word)) return () => Number(word);
      if (/^\.?\d/.test(word)) return () => new Float(word);
      if (/\w/.test(word)) return () => named(word);
      const isList = word === "[", items = separated(expression, isList ? "]" : ")");
      const isAlone = items.length === 1 && words[n - 2] !== ","; // (a), and not (a,)
      return isAlone && !isList ? items[0] : later((...all) => Object.assign(all, { isList }), ...items);
    };
    const argument = () => { // [the keyword or null, the value]
      const key = words[n + 1] === "=" ? words[n] : null;
      if (key) n += 2;
      return later(value => [key, value], expression());
    };
    const subscript = () => {
      const bound = () => [":", "]", ","].includes(words[n]) ? () => null : expression();
      const start = bound();
      return takes(":") ? later(sliced, start, bound(), takes(":") ? bound() : () => null) : start;
    };
    const continued = (left, sign, level) => {
      if (sign === ".") {
        const name = words[n++] ?? stop();
        return () => attribute(left(), name);
      }
      // what is wrong in an argument is said first
      if (sign === "(") return later((...all) => all.pop()(all), ...separated(argument, ")"), left);
      if (sign === "[") return takes("]") ? stop() : later(indexed, left, ...separated(subscript, "]"));
      const right = expression(sign === "**" ? level - 1 : level + 1); // 2 ** -x
      if (sign === "or") return choice(left, left, right);
      if (sign === "and") return choice(left, right, left);
      if (sign === "if") return choice(right, left, takes("else") ? expression() : stop());
      const result = () => operated(sign, left(), right());
      const next = COMPARISONS.includes(sign) && takes(...COMPARISONS); // a < b < c is a < b and b < c
      return next ? choice(result, continued(right, next, level), result) : result;
    };
    const expression = (least = 0) => { // of operators that bind so much, or more
      const [binds, f] = PREFIXES[words[n]] ?? [];
      if (binds < least) stop();
      if (f) n++;
      let left = f ? later(f, expression(binds)) : atom();
      const levelNow = () => LEVELS.findIndex(signs => signs.includes(words[n]));
      for (let level; (level = levelNow()) >= least;) left = continued(left, words[n++], level);
      return left;
    };
    const line = expression();
    return n < words.length ? stop() : line();
  }, { Beyond, Wrong, Tensor, isTensor, isNumber, said,
    known: Object.keys({ ...FUNCTIONS.torch, ...FUNCTIONS.method }) });
})();

// A line of Python on small tensors: evaluated("g * x.sum(0)", {g, x}). An int is a number here, a
// float a Float, a tuple or list an array. What is not surely done as PyTorch does it is Beyond this
// page, and so is what makes an error here: the course runs it.

const evaluated = (() => {
  class Beyond extends Error {}
  class Wrong extends Error {} // where PyTorch raises an error, too: a kind of the page's sentences
  class Float extends Number {}
  const beyond = (what, more) => { throw Object.assign(new Beyond(what), more); };
  const wrong = (kind, gaps = {}) => { throw Object.assign(new Wrong(kind), { gaps }); };
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
  const floating = dtype => category(dtype) === FLOAT ? dtype : "float32"; // PyTorch's default
  const rounded = (dtype, n) => dtype === "float32" ? Math.fround(n) : Number(n);

  class Tensor { // dense: its elements lie in memory in their order
    constructor(shape, data, dtype, dense = true) { Object.assign(this, { shape, data, dtype, dense }); }
    shaped(shape) { return new Tensor(shape, this.data, this.dtype, this.dense); }
    at(place) { // the element there, if a dimension of size 1 is as long as needed
      const own = this.shape.map((size, dim) => size === 1 ? 0 : place.at(dim - this.shape.length));
      return this.data[own.reduce((n, i, dim) => n * this.shape[dim] + i, 0)];
    }
  }
  const built = (shape, dtype, at, dense = false) => { // at(place) is the element there
    if (product(shape) > LARGEST) beyond(said(shape));
    const place = shape.map(() => 0);
    return new Tensor(shape, range(product(shape)).map(() => {
      const element = rounded(dtype, at(place));
      evaluated.overflows ||= Math.abs(element) === Infinity;
      for (let dim = shape.length; dim-- && ++place[dim] === shape[dim];) place[dim] = 0;
      return element;
    }), dtype, dense);
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
    const shape = values.map(value => value.shape ?? []).reduce(broadcast);
    const read = (value, place) => rounded(dtype, isTensor(value) ? value.at(place) : value);
    return built(shape, dtype, place => f(...values.map(value => read(value, place))),
      values.every(value => value.dense ?? true));
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
    if (typeof keepdim !== "boolean" || keepdim && dim === null) beyond("keepdim");
    const dims = dimsOf(x.shape, dim), all = dims.reduce((left, d) => {
      const rows = range(left.shape[d] ?? 1).map(row => picked(left, d, [row]));
      return rows.reduce((a, b) => operated("+", a, b), built(put(left.shape, d, 1), x.dtype, () => 0));
    }, x);
    return keepdim ? all : all.shaped(all.shape.filter((_, d) => !dims.includes(d)));
  };

  const reshaped = (x, sizes) => {
    const shape = sizes.map(n => n === -1 ? x.data.length / -product(sizes) : n);
    const isShape = shape.every(n => isInt(n) && n >= 0) && product(shape) === x.data.length;
    if (!isShape) misfit("reshape", x.shape, sizes);
    return new Tensor(shape, x.data, x.dtype);
  };
  const permuted = (x, dims) => {
    const order = dims.length === x.shape.length ? dimsOf(x.shape, dims) : beyond("permute");
    return built(order.map(dim => x.shape[dim]), x.dtype,
      place => x.at(order.map((_, dim) => place[order.indexOf(dim)])));
  };
  const transposed = (x, one, other) => {
    const order = range(x.shape.length), [a, b] = [dimOf(x.shape, one), dimOf(x.shape, other)];
    return permuted(x, put(put(order, a, b), b, a));
  };
  const expanded = (x, sizes) => {
    const fits = Math.min(...sizes) < 0 ? beyond("expand") : said(broadcast(x.shape, sizes)) === said(sizes);
    return fits ? built(sizes, x.dtype, place => x.at(place)) : misfit("expand", x.shape, sizes);
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
    if (Array.isArray(x) && isInt(asked[0]) && isAlone) return x[oneOf(x.length, asked[0])];
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
    "&": (a, b) => a & b, "|": (a, b) => a | b, "^": (a, b) => a ^ b,
  };
  const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];
  const inPython = (op, a, b) => { // neither is a tensor
    if (![a, b].every(isNumber) || "&|^".includes(op)) beyond(op);
    const result = OPERATIONS[op](Number(a), Number(b)), whole = ![a, b].some(one => one instanceof Float);
    if (COMPARISONS.includes(op)) return result;
    if ("//".includes(op) && Number(b) === 0) wrong("zero");
    if (op === "//" && !whole || !(Math.abs(result) <= 2 ** 53)) beyond(op); // inexact, or complex
    return whole && op !== "/" && !(op === "**" && b < 0) ? result : new Float(result);
  };
  const operated = (op, a, b) => {
    if (op === "@") return matmul(a, b);
    if (!isTensor(a) && !isTensor(b)) return inPython(op, a, b);
    const dtype = common(a, b), kind = category(dtype), f = OPERATIONS[op];
    if (COMPARISONS.includes(op)) return Object.assign(elementwise(f, dtype, a, b), { dtype: "bool" });
    if ("&|^".includes(op) && kind === FLOAT) wrong(op === "^" ? "power" : "bits");
    if (op === "-" && [a, b].some(one => one.dtype === "bool" || typeof one === "boolean")) wrong("minus");
    if (dtype === "bool" && "+*".includes(op)) return operated(op === "+" ? "|" : "&", a, b);
    if (op === "//" || kind < FLOAT && op === "**") beyond(op);
    return elementwise(f, op === "/" ? floating(dtype) : dtype, a, b);
  };
  const isTrue = value => isNumber(value) ? Number(value) !== 0 : !isTensor(value) ? beyond("if")
    : value.data.length === 1 ? value.data[0] !== 0 : wrong("truth");
  const negated = value => value?.dtype === "bool" ? wrong("minus") : operated("*", -1, value);
  const inverted = value => value?.dtype === "bool" ? elementwise(n => !n, "bool", value)
    : isTensor(value) && isFloat(value) ? wrong("bits") : beyond("~");

  // ---- Functions, {name: [parameters, f]}. The parameter * is a list, or all that a method is given.

  const alike = f => (...values) => elementwise(f, common(...values), ...values);
  const clamped = (x, low = null, high = null) => {
    const given = [low, high].filter(bound => bound !== null);
    if (!given.length || !given.every(isNumber) || !isFloat(x)) beyond("clamp");
    return elementwise(n => Math.min(Math.max(n, low ?? -Infinity), high ?? Infinity), x.dtype, x);
  };
  const where = (mask, one, other) => {
    const dtype = mask.dtype === "bool" ? common(one, other) : beyond("where");
    return elementwise((m, a, b) => m ? a : b, dtype, mask, one, other);
  };
  const filled = (x, value) => isNumber(value) && isFloat(x)
    ? elementwise(() => value, x.dtype, x) : beyond("…_like");
  const rolled = (x, shifts, dims = null) => {
    if (dims === null) return reshaped(rolled(reshaped(x, [-1]), shifts, 0), x.shape);
    const [dim, ...more] = dimsOf(x.shape, dims), [by] = [shifts].flat(), size = x.shape[dim];
    if (!size || more.length || !isInt(by) || shifts.length > 1) beyond("roll");
    return picked(x, dim, range(size).map(i => ((i - by) % size + size) % size));
  };
  const parted = (x, each, dim = 0) => { // parts of a size along a dimension
    const d = dimOf(x.shape, dim), rows = range(x.shape[d] ?? beyond("split"));
    if (!isInt(each) || each < 1) beyond("split");
    return rows.filter(row => row % each === 0).map(row => picked(x, d, rows.slice(row, row + each)));
  };
  const changed = (functions, made) =>
    Object.fromEntries(Object.entries(functions).map(([name, f]) => [name, made(f, name)]));
  const toFloat = f => ["x", x => elementwise(f, floating(x.dtype), x)];
  const { exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh } = Math;
  const OF_BOTH = { // of torch, and methods
    ...changed({ exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh,
      sigmoid: x => 1 / (1 + exp(-x)), reciprocal: x => 1 / x }, toFloat),
    ...changed({ abs: Math.abs, square: x => x * x, relu: x => x < 0 ? 0 : x,
      sign: x => x > 0 ? 1 : x < 0 ? -1 : 0 }, (f, name) =>
      ["x", x => x.dtype === "bool" ? beyond(name) : alike(f)(x)]),
    ...changed({ lt: "<", le: "<=", gt: ">", ge: ">=" }, op => ["x other", (a, b) => operated(op, a, b)]),
    ...changed({ add: "+", sub: "-", mul: "*", div: "/", pow: "**" }, (op, name) => // or torch.div(1, x)
      ["one other", (a, b) => isTensor(a) || isTensor(b) ? operated(op, a, b) : beyond(name)]),
    matmul: ["x tensor", matmul],
    ...changed({ maximum: Math.max, minimum: Math.min,
      logaddexp: (a, b) => Math.max(a, b) + log1p(exp(-Math.abs(a - b))) }, f => ["x tensor", (a, b) => alike(f)(a, b)]),
    sum: ["x dim keepdim", (x, ...along) => summed(x.dtype === "bool" ? operated("*", 1, x) : x, ...along)],
    mean: ["x dim keepdim", (x, ...along) => {
      const all = summed(isFloat(x) ? x : beyond("mean"), ...along);
      return operated("/", all, x.data.length / all.data.length);
    }],
    clamp: ["x min max", clamped],
    clip: ["x min max", clamped],
    masked_fill: ["x mask value", (x, mask, value) => where(mask, filled(x, value), x)],
    nan_to_num: ["x nan", (x, nan = 0) => isFloat(x) && isNumber(nan) && !x.data.includes(Infinity) && !x.data.includes(-Infinity)
      ? elementwise(n => Number.isNaN(n) ? nan : n, x.dtype, x) : beyond("nan_to_num")],
    neg: ["x", negated],
    t: ["x", x => x.shape.length > 2 ? beyond("t") : PROPERTIES.T(x)],
    transpose: ["x dim0 dim1", transposed],
    permute: ["x *", permuted],
    reshape: ["x *", reshaped],
    unsqueeze: ["x dim", unsqueezed],
    flip: ["x *", (x, dims) => dims.length ? dimsOf(x.shape, dims).reduce((all, dim) =>
      picked(all, dim, range(x.shape[dim]).reverse()), x) : beyond("flip")],
    roll: ["x shifts dims", rolled],
    chunk: ["x count dim", (x, count, dim = 0) =>
      parted(x, Math.ceil(x.shape[dimOf(x.shape, dim)] / count), dim)],
    split: ["x each dim", parted],
    numel: ["x", x => x.data.length],
    clone: ["x", x => x],
    mm: ["x tensor", (a, b) => a.shape.length === 2 && b.shape.length === 2 ? matmul(a, b) : beyond("mm")],
  };
  const { relu, sigmoid, tanh: hyperbolic } = OF_BOTH;
  const FUNCTIONS = {
    torch: { __proto__: null, ...OF_BOTH,
      where: ["mask one other", where],
      ones_like: ["x", x => filled(x, 1)],
      zeros_like: ["x", x => filled(x, 0)],
      full_like: ["x value", filled],
      cat: ["all dim", joined],
      stack: ["all dim", (all, dim = 0) => joined(all.map(x => unsqueezed(x, dim)), dim)],
    },
    "torch.nn": { __proto__: null },
    method: { __proto__: null, ...OF_BOTH,
      where: ["one mask other", (one, mask, other) => where(mask, one, other)],
      view: ["x *", (x, sizes) => x.dense ? reshaped(x, sizes) : beyond("view")],
      expand: ["x *", expanded],
      expand_as: ["x tensor", (x, other) => expanded(x, other.shape)],
      size: ["x dim", (x, dim = null) => dim === null ? x.shape : indexed(x.shape, dim)],
    },
    "torch.nn.functional": { __proto__: null, relu, sigmoid, tanh: hyperbolic,
      softplus: toFloat(x => x > 20 ? x : log1p(exp(x))),
      logsigmoid: toFloat(x => Math.min(x, 0) - log1p(exp(-Math.abs(x)))),
    },
  };
  const TENSORS = ["x", "tensor", "mask"]; // parameters that are no numbers
  const ALIASES = { axis: "dim", keepdims: "keepdim", input: "x", dims: "*", exponent: "other" };
  const called = (of, name, given) => { // given: [keyword or null, value]
    const [signature, f] = FUNCTIONS[of][name], names = signature.split(" ");
    const bound = [];
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
      abs: x => isTensor(x) ? OF_BOTH.abs[1](x) : operated("*", x < 0 ? -1 : 1, x),
      sum: x => range(length(x)).map(row => indexed(x, row)).reduce((a, b) => operated("+", a, b), 0),
      float: x => isNumber(x) ? new Float(x) : beyond("float"),
      int: x => isNumber(x) ? Math.trunc(x) : beyond("int"),
    }, (f, name) => given => given.length === 1 && !given[0][0] ? f(given[0][1]) : beyond(name)),
  };
  const PROPERTIES = {
    __proto__: null,
    T: x => permuted(x, range(x.shape.length).reverse()),
    mT: x => transposed(x, -2, -1),
    shape: x => x.shape,
    ndim: x => x.shape.length,
  };
  const attribute = (value, name) => {
    const module = value?.path, path = `${module}.${name}`;
    if (FUNCTIONS[path]) return { path };
    if (FUNCTIONS[module]?.[name]) return given => called(module, name, given);
    if (module === "torch") FUNCTIONS["torch.nn.functional"][name] ? wrong("functional", { name }) : beyond(name);
    if (module) beyond(path);
    if (!value?.shape) beyond(`.${name}`);
    if (PROPERTIES[name]) return PROPERTIES[name](value);
    if (!FUNCTIONS.method[name]) beyond(name);
    return given => called("method", name, [[null, value], ...given]);
  };

  // ---- The parser: each part becomes a function, to be called when its value is needed.

  const TOKEN = /(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|\*\*|\/\/|[<>=!]=|\S/g;
  const BEGINNING = /^(?!(if|else|and|or|not)$)(\.?\d|\w|[([])/;
  const LEVELS = [["if"], ["or"], ["and"], [], COMPARISONS, ["|"], ["^"], ["&"], ["+", "-"],
    ["*", "/", "//", "@"], [], ["**"], [".", "(", "["]]; // from what binds least
  const PREFIXES = { __proto__: null, // the empty level of each, and what it does
    not: [3, value => !isTrue(value)], "-": [10, negated], "~": [10, inverted] };
  const later = (f, ...parts) => () => f(...parts.map(part => part()));
  const either = (end, one, other) => () => { // "or" ends at what is true, "and" at what is not
    const value = one();
    return isTrue(value) === end ? value : other();
  };
  const known = Object.keys({ ...FUNCTIONS.torch, ...FUNCTIONS.method });
  return Object.assign((source, given) => {
    const scope = { __proto__: null, ...NAMES, ...given }, words = source.match(TOKEN) ?? [];
    let n = 0;
    const takes = (...signs) => signs.includes(words[n]) ? words[n++] : null;
    const stop = () => {
      const left = words.slice(n).join(" ").replace(/ ?([.()[\]]) ?/g, "$1");
      beyond(left || source.trim(), { isSyntax: true });
    };
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
      if (sign === "[") return later(indexed, left, ...separated(subscript, "]"));
      const right = expression(sign === "**" ? level - 1 : level + 1); // 2 ** -x
      if (sign === "or" || sign === "and") return either(sign === "or", left, right);
      if (sign === "if") {
        const other = takes("else") ? expression() : stop();
        return () => isTrue(right()) ? left() : other();
      }
      const result = () => operated(sign, left(), right());
      const next = COMPARISONS.includes(sign) && takes(...COMPARISONS); // a < b < c is a < b and b < c
      return next ? either(false, result, continued(right, next, level)) : result;
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
  }, { Beyond, Wrong, Tensor, isTensor, isNumber, said, known });
})();

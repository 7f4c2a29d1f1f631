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
  const isNumber = value => value instanceof Float || ["number", "boolean"].includes(typeof value);
  const isTensor = value => value instanceof Tensor;
  const said = shape => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  const misfit = (kind, one, other) => wrong(kind, { one: said(one), other: said(other) });
  const product = list => list.reduce((all, n) => all * n, 1);
  const total = list => list.reduce((sum, n) => sum + n, 0);
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
    at(place) { return this.data[place.reduce((n, i, dim) => n * this.shape[dim] + i, 0)]; }
    shaped(shape) { return new Tensor(shape, this.data, this.dtype, this.dense); }
    stretched(place) { // the element there, if a dimension of size 1 is as long as needed
      return this.at(this.shape.map((n, dim) => n === 1 ? 0 : place[dim + place.length - this.shape.length]));
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

  // The dtype in which PyTorch computes. Tensors with dimensions decide it, unless one without, or
  // after it a number, is of a higher category.
  const NUMBERS = { boolean: "bool", number: "int64", object: "float32" };
  const common = (...values) => [0, 1, 2].reduce((result, now) => {
    const rank = value => !isTensor(value) ? 2 : value.shape.length ? 0 : 1;
    const dtypeOf = value => value?.dtype ?? (isNumber(value) ? NUMBERS[typeof value] : beyond("…"));
    const all = values.filter(value => rank(value) === now).map(value => DTYPES.indexOf(dtypeOf(value)));
    const highest = DTYPES[Math.max(...all)];
    return category(highest) > category(result) ? highest : result;
  }, null);
  const broadcast = (one, other) => range(Math.max(one.length, other.length)).reverse().map(back => {
    const [a, b] = [one, other].map(shape => shape.at(-1 - back) ?? 1);
    return a === b || b === 1 ? a : a === 1 ? b : misfit("broadcast", one, other);
  });
  // f of the elements, which are numbers of the dtype `of`; the result is of `dtype`.
  const elementwise = (f, of, dtype, ...values) => {
    const shape = values.map(value => value.shape ?? []).reduce(broadcast);
    const read = (value, place) => rounded(of, isTensor(value) ? value.stretched(place) : value);
    return built(shape, dtype, place => f(...values.map(value => read(value, place))),
      values.every(value => value.dense ?? true));
  };

  const indexOf = (size, index, kind, gaps) => !isInt(index) ? beyond(kind)
    : index < -size || index >= size ? wrong(kind, gaps) : (index + size) % size;
  const oneOf = (size, index) => indexOf(size, index, "index", { index, size });
  const dimOf = (shape, dim) => indexOf(Math.max(shape.length, 1), dim, "dim", { dim, shape: said(shape) });
  const dimsOf = (shape, dims) => {
    const all = dims === null || dims.length === 0 ? range(shape.length) : [dims].flat().map(dim => dimOf(shape, dim));
    return new Set(all).size === all.length ? all : beyond("dim");
  };
  const reduced = (f, dtype, x, dim, keepdim = false) => { // f of the list of elements along dimensions
    if (typeof keepdim !== "boolean" || keepdim && dim === null) beyond("keepdim");
    const dims = dimsOf(x.shape, dim), sizes = wanted => x.shape.map((n, d) => dims.includes(d) === wanted ? n : 1);
    const all = built(sizes(false), dtype, place =>
      f(built(sizes(true), "float64", step => x.at(place.map((i, d) => i + step[d]))).data));
    return keepdim ? all : all.shaped(all.shape.filter((_, d) => !dims.includes(d)));
  };
  const picked = (x, dim, rows) => built(put(x.shape, dim, rows.length), x.dtype,
    place => x.at(put(place, dim, rows[place[dim]])));

  const reshaped = (x, sizes) => {
    const shape = sizes.map(n => n === -1 ? x.data.length / -product(sizes) : n);
    if (product(shape) !== x.data.length || !shape.every(n => isInt(n) && n >= 0)) misfit("reshape", x.shape, sizes);
    return new Tensor(shape, x.data, x.dtype);
  };
  const permuted = (x, dims) => {
    const order = dims.length === x.shape.length ? dimsOf(x.shape, dims) : beyond("permute");
    return built(order.map(dim => x.shape[dim]), x.dtype, place => x.at(order.map((_, dim) => place[order.indexOf(dim)])));
  };
  const transposed = (x, one, other) => {
    const order = range(x.shape.length), [a, b] = [dimOf(x.shape, one), dimOf(x.shape, other)];
    return permuted(x, put(put(order, a, b), b, a));
  };
  const expanded = (x, sizes) => {
    const fits = Math.min(...sizes) < 0 ? beyond("expand") : said(broadcast(x.shape, sizes)) === said(sizes);
    return fits ? built(sizes, x.dtype, place => x.stretched(place)) : misfit("expand", x.shape, sizes);
  };
  const unsqueezed = (x, dim) => {
    const at = dimOf([...x.shape, 1], dim);
    return x.shaped([...x.shape.slice(0, at), 1, ...x.shape.slice(at)]);
  };
  const joined = (all, dim) => {
    const [first] = all.every(isTensor) ? all : beyond("cat"), d = dimOf(first.shape, dim), shape = x => said(put(x.shape, d, "…"));
    const other = all.find(x => shape(x) !== shape(first));
    if (other) misfit("broadcast", first.shape, other.shape);
    const rows = all.flatMap(x => range(x.shape[d]).map(row => [x, row]));
    return built(put(first.shape, d, rows.length), common(...all), place => {
      const [x, row] = rows[place[d]];
      return x.at(put(place, d, row));
    });
  };
  const matmul = (a, b) => {
    if (![a, b].every(one => isFloat(one) && one.shape.length < 3) || a.dtype !== b.dtype) beyond("@");
    if (!a.shape.length || a.shape.at(-1) !== b.shape[0]) misfit("matmul", a.shape, b.shape);
    const rows = b.shape.length === 2 ? unsqueezed(a, -1) : a; // beside each column of b
    return reduced(total, a.dtype, operated("*", rows, b), -b.shape.length);
  };

  const sliced = (start, stop, step) => size => { // the indices that a slice takes
    const [from, to, by] = [start ?? 0, stop ?? size, step ?? 1].map(n => isInt(n) ? n : beyond("[:]"));
    return range(size).slice(from, to).filter((_, n) => by > 0 ? n % by === 0 : beyond("[::-1]"));
  };
  const indexed = (x, asked) => {
    if (Array.isArray(x) && isInt(asked[0]) && asked.length === 1)
      return x[oneOf(x.length, asked[0])];
    let left = x, d = 0;
    for (const index of asked) {
      const { shape } = left, size = shape[d];
      if (index === null) left = unsqueezed(left, d++);
      else if (d === shape.length) wrong("indices", { shape: said(x.shape) });
      else if (typeof index === "function") left = picked(left, d++, index(size));
      else if (index.isList && asked.length === 1) left = picked(left, d, index.map(row => oneOf(size, row)));
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
    if (op === "//" && !whole || Number.isNaN(result) || Math.abs(result) > 2 ** 53) beyond(op); // complex; inexact
    return whole && op !== "/" && !(op === "**" && b < 0) ? result : new Float(result);
  };
  const operated = (op, a, b) => {
    if (op === "@") return matmul(a, b);
    if (!isTensor(a) && !isTensor(b)) return inPython(op, a, b);
    const dtype = common(a, b), kind = category(dtype);
    if (COMPARISONS.includes(op)) return elementwise(OPERATIONS[op], dtype, "bool", a, b);
    if ("&|^".includes(op) && kind === FLOAT) wrong(op === "^" ? "power" : "bits");
    if (op === "-" && [a, b].some(one => one.dtype === "bool" || typeof one === "boolean")) wrong("minus");
    if (dtype === "bool" && "+*".includes(op)) return operated(op === "+" ? "|" : "&", a, b);
    if (op === "//" || kind < FLOAT && op === "**") beyond(op);
    const result = op === "/" ? floating(dtype) : dtype;
    return elementwise(OPERATIONS[op], result, result, a, b);
  };
  const isTrue = value => isNumber(value) ? Number(value) !== 0 : !isTensor(value) ? beyond("if")
    : value.data.length === 1 ? value.data[0] !== 0 : wrong("truth");
  const negated = value => value?.dtype === "bool" ? wrong("minus") : operated("*", -1, value);
  const inverted = value => value?.dtype === "bool" ? elementwise(n => !n, "bool", "bool", value)
    : isTensor(value) && isFloat(value) ? wrong("bits") : beyond("~");

  // ---- Functions, {name: [parameters, f]}. The parameter * is a list, or all that a method is given.

  const alike = f => (...values) => elementwise(f, common(...values), common(...values), ...values);
  const clamped = (x, low, high) => {
    const given = [low, high].filter(bound => bound !== null);
    if (!given.length || !given.every(isNumber) || !isFloat(x)) beyond("clamp");
    return elementwise(n => Math.min(Math.max(n, low ?? -Infinity), high ?? Infinity), x.dtype, x.dtype, x);
  };
  const where = (mask, one, other) => {
    const dtype = mask.dtype === "bool" ? common(one, other) : beyond("where");
    return elementwise((m, a, b) => m ? a : b, dtype, dtype, mask, one, other);
  };
  const filled = (x, value) => isNumber(value) && isFloat(x)
    ? elementwise(() => value, x.dtype, x.dtype, x) : beyond("…_like");
  const rolled = (x, shifts, dims) => {
    if (dims === null) return reshaped(rolled(reshaped(x, [-1]), shifts, 0), x.shape);
    const [dim, ...more] = dimsOf(x.shape, dims), [by] = [shifts].flat(), size = x.shape[dim];
    if (!size || more.length || !isInt(by) || shifts.length > 1) beyond("roll");
    return picked(x, dim, range(size).map(i => ((i - by) % size + size) % size));
  };
  const flipped = (x, dims) => dims.length
    ? dimsOf(x.shape, dims).reduce((all, dim) => picked(all, dim, range(x.shape[dim]).reverse()), x) : beyond("flip");
  const parted = (x, each, dim) => { // parts of a size along a dimension
    const d = dimOf(x.shape, dim), rows = range(x.shape[d] ?? beyond("split"));
    if (!isInt(each) || each < 1) beyond("split");
    return rows.filter(row => row % each === 0).map(row => picked(x, d, rows.slice(row, row + each)));
  };
  const along = (f, whole) => ["x dim=None keepdim=False", (x, dim, keepdim) =>
    reduced(f, isFloat(x) ? x.dtype : whole ?? beyond("mean"), x, dim, keepdim)];
  const changed = (functions, made) =>
    Object.fromEntries(Object.entries(functions).map(([name, f]) => [name, made(f, name)]));
  const toFloat = f => ["x", x => elementwise(f, floating(x.dtype), floating(x.dtype), x)];
  const { exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh } = Math;
  const OF_BOTH = { // of torch, and methods
    ...changed({ exp, expm1, log, log1p, sqrt, sin, cos, sinh, cosh, tanh,
      sigmoid: x => 1 / (1 + exp(-x)), reciprocal: x => 1 / x }, toFloat),
    ...changed({ abs: Math.abs, square: x => x * x, relu: x => x < 0 ? 0 : x,
      sign: x => x > 0 ? 1 : x < 0 ? -1 : 0 }, (f, name) => ["x", x => x.dtype === "bool" ? beyond(name) : alike(f)(x)]),
    ...changed({ lt: "<", le: "<=", gt: ">", ge: ">=" }, op => ["x other", (a, b) => operated(op, a, b)]),
    ...changed({ add: "+", sub: "-", mul: "*", div: "/", pow: "**" }, (op, name) => // or torch.div(1, x)
      ["one other", (a, b) => isTensor(a) || isTensor(b) ? operated(op, a, b) : beyond(name)]),
    matmul: ["x tensor", matmul],
    ...changed({ maximum: Math.max, minimum: Math.min }, f => ["x tensor", alike(f)]),
    sum: along(total, "int64"),
    mean: along(list => total(list) / list.length),
    clamp: ["x min=None max=None", clamped],
    clip: ["x min=None max=None", clamped],
    masked_fill: ["x mask value", (x, mask, value) => where(mask, filled(x, value), x)],
    neg: ["x", negated],
    t: ["x", x => x.shape.length > 2 ? beyond("t") : attribute(x, "T")],
    transpose: ["x dim0 dim1", transposed],
    permute: ["x *", permuted],
    reshape: ["x *", reshaped],
    unsqueeze: ["x dim", unsqueezed],
    flip: ["x *", flipped],
    roll: ["x shifts dims=None", rolled],
    chunk: ["x count dim=0", (x, count, dim) => parted(x, Math.ceil(x.shape[dimOf(x.shape, dim)] / count), dim)],
    split: ["x each dim=0", parted],
    numel: ["x", x => x.data.length],
    clone: ["x", x => x],
    mm: ["x tensor", (a, b) => a.shape.length === 2 && b.shape.length === 2 ? matmul(a, b) : beyond("mm")],
    where: ["mask one other", where],
  };
  const { relu, sigmoid, tanh: hyperbolic } = OF_BOTH;
  const FUNCTIONS = {
    torch: { ...OF_BOTH,
      ones_like: ["x", x => filled(x, 1)],
      zeros_like: ["x", x => filled(x, 0)],
      full_like: ["x value", filled],
      cat: ["all dim=0", joined],
      stack: ["all dim=0", (all, dim) => joined(all.map(x => unsqueezed(x, dim)), dim)],
    },
    method: { ...OF_BOTH,
      view: ["x *", (x, sizes) => x.dense ? reshaped(x, sizes) : beyond("view")],
      expand: ["x *", expanded],
      expand_as: ["x tensor", (x, other) => expanded(x, other.shape)],
      size: ["x dim=None", (x, dim) => dim === null ? x.shape : indexed(x.shape, [dim])],
    },
    "torch.nn.functional": { relu, sigmoid, tanh: hyperbolic,
      softplus: toFloat(x => x > 20 ? x : log1p(exp(x))),
      logsigmoid: toFloat(x => Math.min(x, 0) - log1p(exp(-Math.abs(x)))),
    },
  };
  const TENSORS = ["x", "tensor", "mask"]; // parameters that are no numbers
  const DEFAULTS = { None: null, False: false, 0: 0 };
  const ALIASES = { axis: "dim", keepdims: "keepdim", input: "x", dims: "*", exponent: "other" };
  const called = (of, name, args, named) => {
    const own = Object.hasOwn(FUNCTIONS[of] ?? {}, name), [signature, f] = own ? FUNCTIONS[of][name] : beyond(name);
    const parameters = signature.split(" ").map(one => one.split("=")), names = parameters.map(([one]) => one);
    const bound = names[1] === "*" && of === "method" && isInt(args[1]) ? [args[0], args.slice(1)] : [...args];
    for (const [key, value] of named) {
      const n = names.findIndex(parameter => parameter === key || parameter === ALIASES[key]);
      if (n in bound || n < 0) beyond(`${name}(${key}=…)`);
      bound[n] = value;
    }
    for (const [n, [, usual]] of parameters.entries())
      if (!(n in bound)) bound[n] = usual ? DEFAULTS[usual] : beyond(`${name}(…)`);
    if (bound.length > names.length || names[1] === "*" && !bound[1].every?.(isInt)) beyond(`${name}(…)`);
    if (names.some((one, n) => TENSORS.includes(one) && !isTensor(bound[n]))) wrong("number", { name });
    return f(...bound);
  };
  const length = x => (x.shape?.[0] ?? x.length) ?? beyond("len");
  const NAMES = {
    True: true, False: false, None: null, torch: { path: "torch" }, F: { path: "torch.nn.functional" },
    ...changed({
      len: length,
      abs: x => isTensor(x) ? OF_BOTH.abs[1](x) : operated("*", x < 0 ? -1 : 1, x),
      sum: x => range(length(x)).map(row => indexed(x, [row])).reduce((a, b) => operated("+", a, b), 0),
      float: x => isNumber(x) ? new Float(x) : beyond("float"),
      int: x => isNumber(x) ? Math.trunc(x) : beyond("int"),
    }, (f, name) => (args, named) => args.length === 1 && !named.length ? f(args[0]) : beyond(name)),
  };
  const attribute = (value, name) => {
    const path = value?.path && `${value.path}.${name}`;
    if (path && "torch.nn.functional".startsWith(path)) return { path };
    const has = module => Object.hasOwn(FUNCTIONS[module] ?? {}, name);
    if (path && has(value.path)) return (args, named) => called(value.path, name, args, named);
    if (path) value.path !== "torch" ? beyond(path) : has("torch.nn.functional") ? wrong("functional", { name }) : beyond(name);
    const dims = range((value?.shape ?? beyond(`.${name}`)).length);
    if (name === "T") return permuted(value, dims.reverse());
    if (name === "mT") return dims.length > 1 ? transposed(value, -2, -1) : beyond(".mT");
    if (name === "shape") return value.shape;
    if (name === "ndim") return dims.length;
    const first = name === "where" ? 1 : 0; // which argument the tensor is
    return (args, named) => called("method", name, [...args.slice(0, first), value, ...args.slice(first)], named);
  };

  // ---- The parser: each part becomes a function, to be called when its value is needed.

  const TOKEN = /(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|\*\*|\/\/|[<>=!]=|\S/g;
  const BEGINNING = /^(?!(if|else|and|or|not)$)(\.?\d|\w|[([])/;
  const LEVELS = [["or"], ["and"], COMPARISONS, ["|"], ["^"], ["&"], ["+", "-"], ["*", "/", "//", "@"]];
  return Object.assign((source, given) => {
    const scope = { __proto__: null, ...NAMES, ...given }, words = source.match(TOKEN) ?? [];
    let n = 0;
    const is = (...signs) => n < words.length && signs.includes(words[n]);
    const takes = (...signs) => is(...signs) ? words[n++] : null;
    const stop = () => beyond(words.slice(n).join(" ").replace(/ ?([.()[\]]) ?/g, "$1") || source.trim(), { isSyntax: true });
    const separated = (part, close) => { // parts with commas, and whether there is one: (a, b,)
      const parts = [];
      let comma = null;
      while (!takes(close)) {
        parts.push(part());
        comma = takes(",");
        if (!comma && !is(close)) stop();
      }
      return [parts, Boolean(comma) || parts.length !== 1];
    };
    const atom = () => {
      const word = words[n] ?? stop();
      if (!BEGINNING.test(word)) stop();
      n++;
      if (/^\d+$/.test(word)) return () => Number(word);
      if (/^\.?\d/.test(word)) return () => new Float(word);
      if (/\w/.test(word)) return () => word in scope ? scope[word] : word in FUNCTIONS.torch ? wrong("name", { name: word }) : beyond(word, { isName: true });
      const [items, isTuple] = separated(conditional, word === "(" ? ")" : "]"), isList = word === "[";
      return isTuple || isList ? () => Object.assign(items.map(item => item()), { isList }) : items[0];
    };
    const argument = () => { // [the keyword or null, the value]
      const key = words[n + 1] === "=" ? words[n] : null;
      if (key) n += 2;
      return [key, conditional()];
    };
    const subscript = () => {
      const bound = () => is(":", "]", ",") ? () => null : conditional();
      const start = bound();
      if (!takes(":")) return start;
      const end = bound(), step = takes(":") ? bound() : () => null;
      return () => sliced(start(), end(), step());
    };
    const postfix = () => {
      let left = atom();
      for (let sign; (sign = takes(".", "(", "["));) {
        const one = left;
        if (sign === ".") {
          const name = words[n++] ?? stop();
          left = () => attribute(one(), name);
        } else if (sign === "(") {
          const [parts] = separated(argument, ")");
          left = () => {
            const given = parts.map(([key, value]) => [key, value()]), named = given.filter(([key]) => key);
            return one()(given.filter(([key]) => !key).map(([, value]) => value), named);
          };
        } else {
          const [parts] = separated(subscript, "]");
          left = () => indexed(one(), parts.map(part => part()));
        }
      }
      return left;
    };
    const signed = () => {
      const sign = takes("-", "~");
      if (sign) {
        const value = signed();
        return () => (sign === "-" ? negated : inverted)(value());
      }
      const base = postfix(), exponent = takes("**") && signed();
      return exponent ? () => operated("**", base(), exponent()) : base;
    };
    const binary = level => { // from "or", which binds least, to "*"
      const signs = LEVELS[level];
      if (!signs) return signed();
      if (signs === COMPARISONS && takes("not")) {
        const value = binary(level);
        return () => !isTrue(value());
      }
      const first = binary(level + 1), rest = [];
      for (let sign; (sign = takes(...signs));) rest.push([sign, binary(level + 1)]);
      if (!rest.length) return first;
      return () => {
        let before = first(), result = signs === COMPARISONS || before; // a < b < c is (a < b) and (b < c)
        for (const [sign, next] of rest) {
          if (signs === COMPARISONS ? !isTrue(result) : level < 2 && isTrue(result) === (level === 0)) return result;
          const value = next();
          result = level < 2 ? value : operated(sign, before, value);
          before = signs === COMPARISONS ? value : result;
        }
        return result;
      };
    };
    const conditional = () => {
      const value = binary(0);
      if (!takes("if")) return value;
      const condition = binary(0), other = takes("else") ? conditional() : stop();
      return () => isTrue(condition()) ? value() : other();
    };
    const line = conditional();
    return n < words.length ? stop() : line();
  }, { Beyond, Wrong, Tensor, isTensor, isNumber, said, known: Object.keys({ ...FUNCTIONS.torch, ...FUNCTIONS.method }) });
})();

// A line of Python on small tensors: evaluated("g * x.sum(0)", {g, x}). Expressions only.
// An int of Python is a BigInt here, a float a number, a tuple or list an array. What is not surely
// done as PyTorch does it is Beyond this page, and is run in the course.

const evaluated = (() => {
  class Beyond extends Error {}
  class Wrong extends Error { // where PyTorch raises an error, too: a kind of the page's sentences
    constructor(kind, gaps) { super(kind); Object.assign(this, { kind, gaps }); }
  }
  const beyond = what => { throw new Beyond(what); };
  const wrong = (kind, gaps = {}) => { throw new Wrong(kind, gaps); };
  const said = shape => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  const product = list => list.reduce((all, n) => all * n, 1);
  const total = list => list.reduce((sum, n) => sum + n, 0);

  // ---- Tensors

  const LARGEST = 1e5; // elements
  const DTYPES = ["bool", "int64", "float32", "float64"];
  const FLOAT = 2; // the category of both kinds of float
  const category = dtype => Math.min(DTYPES.indexOf(dtype), FLOAT);
  const floating = dtype => category(dtype) === FLOAT ? dtype : "float32"; // PyTorch's default
  const rounded = (dtype, n) => dtype === "float32" ? Math.fround(Number(n)) : Number(n);

  class Tensor { // dense: its elements lie in memory in their order
    constructor(shape, data, dtype, dense = true) { Object.assign(this, { shape, data, dtype, dense }); }
    at(place) { return this.data[place.reduce((n, i, dim) => n * this.shape[dim] + i, 0)]; }
    shaped(shape) { return new Tensor(shape, this.data, this.dtype, this.dense); }
  }
  const isTensor = value => value instanceof Tensor;
  const isNumber = value => ["number", "bigint", "boolean"].includes(typeof value);
  const built = (shape, dtype, at, dense = true) => { // at(place) is the element there
    if (product(shape) > LARGEST) beyond(said(shape));
    const data = [], place = shape.map(() => 0);
    for (let left = product(shape); left > 0; left--) {
      data.push(rounded(dtype, at(place)));
      for (let dim = shape.length; dim-- && ++place[dim] === shape[dim];) place[dim] = 0;
    }
    return new Tensor(shape, data, dtype, dense);
  };

  // The dtype in which PyTorch computes. Tensors with dimensions decide it, unless one without, or
  // after it a number, is of a higher category.
  const NUMBERS = { boolean: "bool", bigint: "int64", number: "float32" };
  const common = (...values) => {
    const rank = value => !isTensor(value) ? 2 : value.shape.length ? 0 : 1;
    const dtypes = values.map(value => value?.dtype ?? NUMBERS[typeof value] ?? beyond("…"));
    return [0, 1, 2].reduce((result, now) => {
      const all = dtypes.filter((_, n) => rank(values[n]) === now).map(dtype => DTYPES.indexOf(dtype));
      const highest = DTYPES[Math.max(...all)];
      return all.length && (!result || category(highest) > category(result)) ? highest : result;
    }, null);
  };
  const broadcast = (one, other) => {
    const ndim = Math.max(one.length, other.length);
    return Array.from({ length: ndim }, (_, dim) => {
      const [a, b] = [one, other].map(shape => shape[dim - ndim + shape.length] ?? 1);
      return a === b || b === 1 ? a : a === 1 ? b : wrong("broadcast", { one: said(one), other: said(other) });
    });
  };
  // f of the elements, which are numbers of the dtype `of`; the result is of `dtype`.
  const elementwise = (f, of, dtype, ...values) => {
    const shape = values.map(value => value.shape ?? []).reduce(broadcast);
    const readers = values.map(value => !isTensor(value) ? () => rounded(of, value) : place =>
      rounded(of, value.at(value.shape.map((n, dim) => n === 1 ? 0 : place[dim + place.length - value.shape.length]))));
    const dense = values.every(value => !isTensor(value) || value.dense);
    return built(shape, dtype, place => f(...readers.map(read => read(place))), dense);
  };

  const dimOf = (shape, dim) => {
    const n = Math.max(shape.length, 1), d = typeof dim === "bigint" ? Number(dim) : beyond("dim");
    return d < -n || d >= n ? wrong("dim", { dim: d, shape: said(shape) }) : (d + n) % n;
  };
  const everyDim = shape => shape.map((_, dim) => dim);
  const dimsOf = (shape, dims) => {
    const all = dims === null || dims.length === 0 ? everyDim(shape) : [dims].flat().map(dim => dimOf(shape, dim));
    return new Set(all).size === all.length ? all : beyond("dim");
  };
  const reduced = (f, dtype, x, dim, keepdim) => { // f of the list of elements along dimensions
    if (typeof keepdim !== "boolean" || keepdim && dim === null) beyond("keepdim");
    const dims = dimsOf(x.shape, dim), sizes = wanted => x.shape.map((n, d) => dims.includes(d) === wanted ? n : 1);
    const all = built(sizes(false), dtype, place => {
      const list = [];
      built(sizes(true), "float64", step => list.push(x.at(place.map((i, d) => i + step[d]))));
      return f(list);
    });
    return keepdim ? all : all.shaped(all.shape.filter((_, d) => !dims.includes(d)));
  };

  const sizesOf = args => args.flat().map(n => typeof n === "bigint" ? Number(n) : beyond("size"));
  const reshaped = (x, ...args) => {
    const sizes = sizesOf(args), known = product(sizes.filter(n => n !== -1));
    const shape = sizes.map(n => n === -1 ? x.data.length / known : n);
    if (product(shape) !== x.data.length || !shape.every(Number.isInteger))
      wrong("reshape", { one: said(x.shape), other: said(sizes) });
    return new Tensor(shape, x.data, x.dtype);
  };
  const viewed = (x, ...args) => x.dense ? reshaped(x, ...args) : beyond("view");
  const permuted = (x, order) => built(order.map(dim => x.shape[dim]), x.dtype,
    place => x.at(order.map((_, dim) => place[order.indexOf(dim)])), false);
  const transposed = (x, one, other) => {
    const order = everyDim(x.shape), [a, b] = [dimOf(x.shape, one), dimOf(x.shape, other)];
    [order[a], order[b]] = [order[b], order[a]];
    return permuted(x, order.slice(0, x.shape.length));
  };
  const expanded = (x, ...args) => {
    const sizes = sizesOf(args), more = sizes.length - x.shape.length;
    const shape = sizes.map((n, dim) => n === -1 ? x.shape[dim - more] : n);
    if (more < 0 || !x.shape.every((n, dim) => n === 1 || n === shape[dim + more]))
      wrong("expand", { one: said(x.shape), other: said(sizes) });
    return built(shape, x.dtype, place => x.at(x.shape.map((n, dim) => n === 1 ? 0 : place[dim + more])), false);
  };
  const unsqueezed = (x, dim) => {
    const shape = [...x.shape];
    shape.splice(dimOf([...shape, 1], dim), 0, 1);
    return x.shaped(shape);
  };
  const joined = (all, dim) => {
    const [first] = all, d = dimOf(first.shape, dim);
    const fits = ({ shape }) => shape.length === first.shape.length && shape.every((n, k) => k === d || n === first.shape[k]);
    const other = all.find(x => !fits(x));
    if (other) wrong("broadcast", { one: said(first.shape), other: said(other.shape) });
    const size = total(all.map(x => x.shape[d]));
    return built(first.shape.map((n, k) => k === d ? size : n), common(...all), place => {
      let at = place[d], n = 0;
      while (at >= all[n].shape[d]) at -= all[n++].shape[d];
      return all[n].at(place.map((i, k) => k === d ? at : i));
    });
  };
  const matmul = (a, b) => {
    if (!isTensor(a) || !isTensor(b) || a.dtype !== b.dtype || category(a.dtype) < FLOAT) beyond("@");
    if (a.shape.length > 2 || b.shape.length > 2) beyond("@");
    const left = a.shape.length === 1 ? unsqueezed(a, 0n) : a, right = b.shape.length === 1 ? unsqueezed(b, 1n) : b;
    const [n, size] = left.shape, [rows, m] = right.shape;
    if (size !== rows || !a.shape.length) wrong("matmul", { one: said(a.shape), other: said(b.shape) });
    const all = built([n, m], a.dtype, ([i, j]) =>
      total(Array.from({ length: size }, (_, k) => left.at([i, k]) * right.at([k, j]))));
    return all.shaped([...a.shape.slice(0, -1), ...b.shape.slice(1)]);
  };

  const sliced = (size, { start, stop, step }) => { // the indices that a slice takes
    const [from, to, by] = [start ?? 0n, stop ?? BigInt(size), step ?? 1n].map(n =>
      typeof n === "bigint" ? Number(n) : beyond("[:]"));
    const inside = n => Math.min(Math.max(n < 0 ? n + size : n, 0), size), taken = [];
    for (let i = by > 0 ? inside(from) : beyond("[::-1]"); i < inside(to); i += by) taken.push(i);
    return taken;
  };
  const isSlice = value => value?.slice === true;
  const oneOf = (size, index) => index < -size || index >= size
    ? wrong("index", { index, size }) : (Number(index) + size) % size;
  const indexed = (x, index) => {
    if (Array.isArray(x)) {
      if (typeof index === "bigint") return x[oneOf(x.length, index)];
      return isSlice(index) ? sliced(x.length, index).map(i => x[i]) : beyond("[…]");
    }
    const asked = isTensor(x) ? [index].flat() : beyond("[…]");
    const rest = x.shape.length - asked.filter(one => one !== null).length;
    if (rest < 0) wrong("indices", { shape: said(x.shape) });
    asked.push(...Array(rest).fill({ slice: true }));
    const shape = [], from = []; // of each dimension of x, the index for a place
    for (const one of asked) {
      const size = x.shape[from.length], at = shape.length;
      if (one === null) shape.push(1);
      else if (isSlice(one)) {
        const taken = sliced(size, one);
        shape.push(taken.length);
        from.push(place => taken[place[at]]);
      } else {
        const taken = typeof one === "bigint" ? oneOf(size, one) : beyond("[…]");
        from.push(() => taken);
      }
    }
    return built(shape, x.dtype, place => x.at(from.map(index => index(place))), false);
  };

  // ---- Operators

  const modulo = (a, b) => a - b * Math.floor(a / b);
  const OPERATIONS = {
    "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b,
    "//": (a, b) => Math.floor(a / b), "%": modulo, "**": (a, b) => a === 1 ? 1 : a ** b,
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
    "==": (a, b) => a === b, "!=": (a, b) => a !== b,
    "&": (a, b) => a & b, "|": (a, b) => a | b, "^": (a, b) => a ^ b,
  };
  const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];
  const inPython = (op, a, b) => { // neither is a tensor
    if (!isNumber(a) || !isNumber(b) || "&|^".includes(op)) beyond(op);
    if (COMPARISONS.includes(op)) return OPERATIONS[op](Number(a), Number(b));
    const inWhole = ["//", "%"].includes(op);
    if (inWhole && (typeof a !== "bigint" || typeof b !== "bigint")) beyond(op);
    if ((inWhole || op === "/") && Number(b) === 0) wrong("zero");
    const result = OPERATIONS[op](Number(a), Number(b));
    if (Number.isNaN(result) || Math.abs(result) > 2 ** 53) beyond(op); // complex; inexact
    const whole = typeof a !== "number" && typeof b !== "number" && op !== "/" && !(op === "**" && b < 0);
    return whole ? BigInt(result) : result;
  };
  const operated = (op, a, b) => {
    if (op === "@") return matmul(a, b);
    if (!isTensor(a) && !isTensor(b)) return inPython(op, a, b);
    const dtype = common(a, b), kind = category(dtype);
    if (COMPARISONS.includes(op)) return elementwise(OPERATIONS[op], dtype, "bool", a, b);
    if ("&|^".includes(op) && kind === FLOAT) wrong(op === "^" ? "power" : "bits");
    if (op === "-" && [a, b].some(one => one.dtype === "bool" || typeof one === "boolean")) wrong("minus");
    if (dtype === "bool" && "+*".includes(op)) return operated(op === "+" ? "|" : "&", a, b);
    if (["//", "%"].includes(op) || kind < FLOAT && op === "**") beyond(op);
    const result = op === "/" ? floating(dtype) : dtype;
    return elementwise(OPERATIONS[op], result, result, a, b);
  };
  const isTrue = value => !isTensor(value) ? (Array.isArray(value) ? value.length > 0 : Boolean(value))
    : value.data.length === 1 ? value.data[0] !== 0 : wrong("truth");
  const negated = value => isTensor(value) ? FUNCTIONS.neg[1](value) : inPython("-", 0n, value);
  const inverted = value => value?.dtype === "bool" ? FUNCTIONS.logical_not[1](value)
    : isTensor(value) && category(value.dtype) === FLOAT ? wrong("bits") : beyond("~");

  // ---- Functions and methods, {name: [parameters, f]}; the first parameter is a method's tensor.

  const nanOr = better => (a, b) => Number.isNaN(a) || Number.isNaN(b) ? NaN : better(a, b);
  const [least, most] = [Math.min, Math.max].map(nanOr);
  const alike = f => (...values) => elementwise(f, common(...values), common(...values), ...values);
  const clamped = (x, low, high) => {
    const given = [low, high].filter(bound => bound !== null);
    if (!given.length || given.some(isTensor) !== given.every(isTensor) || category(x.dtype) < FLOAT) beyond("clamp");
    const above = low === null ? x : alike(most)(x, low);
    return high === null ? above : alike(least)(above, high);
  };
  const where = (mask, one, other) => {
    const dtype = mask.dtype === "bool" ? common(one, other) : beyond("where");
    return elementwise((m, a, b) => m ? a : b, dtype, dtype, mask, one, other);
  };
  const likeIt = (x, value) => isNumber(value) && category(x.dtype) === FLOAT
    ? elementwise(() => value, x.dtype, x.dtype, x) : beyond("…_like");
  const rolled = (x, shifts, dims) => {
    if (dims === null) return reshaped(rolled(reshaped(x, -1n), shifts, 0n), x.shape.map(BigInt));
    const [[d], [by]] = [dimsOf(x.shape, dims), sizesOf([shifts])];
    if (!x.shape.length || [dims].flat().length > 1 || [shifts].flat().length > 1) beyond("roll");
    return built(x.shape, x.dtype, place => x.at(place.map((i, k) => k === d ? modulo(i - by, x.shape[k]) : i)));
  };
  const parted = (x, each, dim) => { // parts of a size along a dimension
    const d = dimOf(x.shape, dim), parts = [];
    if (!x.shape.length || !(each > 0)) beyond("split");
    for (let start = 0; start < x.shape[d]; start += each) {
      const part = { slice: true, start: BigInt(start), stop: BigInt(start + each) };
      parts.push(indexed(x, x.shape.map((_, k) => k === d ? part : { slice: true })));
    }
    return parts;
  };
  const along = (f, whole) => ["x dim=None keepdim=False", (x, dim, keepdim) =>
    reduced(f, category(x.dtype) === FLOAT ? x.dtype : whole ?? beyond("mean"), x, dim, keepdim)];
  const pairwise = (name, f) => ["x other", (a, b) => isTensor(b) ? alike(f)(a, b) : wrong("number", { name })];
  const FUNCTIONS = {
    sum: along(total, "int64"),
    mean: along(list => total(list) / list.length),
    maximum: pairwise("maximum", most),
    minimum: pairwise("minimum", least),
    clamp: ["x min=None max=None", clamped],
    clip: ["x min=None max=None", clamped],
    masked_fill: ["x mask value", (x, mask, value) => where(mask, likeIt(x, value), x)],
    neg: ["x", x => x.dtype === "bool" ? wrong("minus") : alike(n => -n)(x)],
    logical_not: ["x", x => elementwise(n => n === 0, x.dtype, "bool", x)],
    ones_like: ["x", x => likeIt(x, 1)],
    zeros_like: ["x", x => likeIt(x, 0)],
    t: ["x", x => x.shape.length > 2 ? beyond("t") : permuted(x, everyDim(x.shape).reverse())],
    transpose: ["x dim0 dim1", transposed],
    permute: ["x *", (x, ...dims) => dims.flat().length === x.shape.length
      ? permuted(x, dimsOf(x.shape, dims.flat())) : beyond("permute")],
    reshape: ["x *", reshaped],
    view: ["x *", viewed],
    expand: ["x *", expanded],
    expand_as: ["x other", (x, other) => expanded(x, other.shape.map(BigInt))],
    unsqueeze: ["x dim", unsqueezed],
    flip: ["x *", (x, ...dims) => {
      const turned = dims.length ? dimsOf(x.shape, dims.flat()) : beyond("flip");
      return built(x.shape, x.dtype, place => x.at(place.map((i, d) => turned.includes(d) ? x.shape[d] - 1 - i : i)));
    }],
    roll: ["x shifts dims=None", rolled],
    chunk: ["x count dim=0", (x, count, dim) => typeof count === "bigint"
      ? parted(x, Math.ceil(x.shape[dimOf(x.shape, dim)] / Number(count)), dim) : beyond("chunk")],
    split: ["x each dim=0", (x, each, dim) => typeof each === "bigint" ? parted(x, Number(each), dim) : beyond("split")],
    size: ["x dim=None", (x, dim) => dim === null ? x.shape.map(BigInt) : BigInt(x.shape[dimOf(x.shape, dim)])],
    numel: ["x", x => BigInt(x.data.length)],
    clone: ["x", x => x],
    matmul: ["x other", matmul],
    mm: ["x other", (a, b) => a.shape.length === 2 && b.shape?.length === 2 ? matmul(a, b) : beyond("mm")],
    // These take no tensor first.
    where: ["mask one other", where],
    cat: ["all dim=0", joined],
    stack: ["all dim=0", (all, dim) => joined(all.map(x => unsqueezed(x, dim)), dim)],
  };
  const sigmoid = x => 1 / (1 + Math.exp(-x));
  for (const [name, f] of Object.entries({ // of an element; an int becomes a float
    sigmoid, reciprocal: x => 1 / x, softplus: x => x > 20 ? x : Math.log1p(Math.exp(x)),
    logsigmoid: x => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x))),
    ...Object.fromEntries("exp expm1 log log1p sqrt sin cos sinh cosh tanh".split(" ")
      .map(name => [name, Math[name]])),
  })) FUNCTIONS[name] = ["x", x => elementwise(f, floating(x.dtype), floating(x.dtype), x)];
  for (const [name, f] of Object.entries({ // the dtype stays
    abs: Math.abs, square: x => x * x, relu: x => x < 0 ? 0 : x,
    sign: x => x > 0 ? 1 : x < 0 ? -1 : 0,
  })) FUNCTIONS[name] = ["x", x => x.dtype === "bool" ? beyond(name) : alike(f)(x)];
  for (const [name, op] of Object.entries({ add: "+", sub: "-", mul: "*", div: "/", lt: "<", le: "<=",
    gt: ">", ge: ">=", pow: "**" })) FUNCTIONS[name] = [name === "pow" ? "x exponent" : "x other", (a, b) => operated(op, a, b)];

  const NOT_OF = { // a method is no function of torch, and some functions are only in another module
    torch: "view expand expand_as size softplus logsigmoid",
    method: "cat stack ones_like zeros_like softplus logsigmoid",
  };
  const ONLY_OF = { "torch.nn.functional": "relu sigmoid tanh softplus logsigmoid" };
  const NUMBER_FIRST = ["add", "sub", "mul", "div", "pow"]; // torch.div(1, x)
  const DEFAULTS = { None: null, False: false, 0: 0n };
  const ALIASES = { axis: "dim", keepdims: "keepdim", input: "x" };
  const called = (of, name, args, named) => {
    const listed = list => list?.split(" ").includes(name);
    const known = Object.hasOwn(FUNCTIONS, name) && (ONLY_OF[of] ? listed(ONLY_OF[of]) : NOT_OF[of] && !listed(NOT_OF[of]));
    const [signature, f] = known ? FUNCTIONS[name] : beyond(name);
    const parameters = signature.split(" ").map(one => one.split("="));
    if (parameters[1]?.[0] === "*") {
      const [x, ...rest] = named.length ? [...args, named[0][0] === "dims" ? named[0][1] : beyond(name)] : args;
      const fits = rest.length === 1 && Array.isArray(rest[0]) || of === "method" && !named.length;
      return isTensor(x) && rest.length && fits ? f(x, ...rest) : beyond(name);
    }
    if (args.length > parameters.length) beyond(`${name}(…)`);
    const bound = [...args];
    for (const [key, value] of named) {
      const n = parameters.findIndex(([parameter]) => parameter === (ALIASES[key] ?? key));
      if (n < args.length) beyond(`${name}(${key}=…)`);
      bound[n] = value;
    }
    for (const [n, [parameter, usual]] of parameters.entries()) {
      if (n in bound) continue;
      bound[n] = usual ? DEFAULTS[usual] : beyond(`${name}(…)`);
    }
    const tensors = parameters[0][0] === "all" ? bound[0] : NUMBER_FIRST.includes(name) ? bound.filter(isTensor) : [bound[0]];
    if (!Array.isArray(tensors) || !tensors.length) beyond(name);
    if (!tensors.every(isTensor)) tensors.every(one => isTensor(one) || isNumber(one)) ? wrong("number", { name }) : beyond(name);
    return f(...bound);
  };
  const BUILTINS = {
    len: x => Array.isArray(x) ? BigInt(x.length) : x.shape?.length ? BigInt(x.shape[0]) : beyond("len"),
    abs: x => isTensor(x) ? FUNCTIONS.abs[1](x) : x < 0 ? negated(x) : inPython("+", 0n, x),
    sum: x => (Array.isArray(x) ? x : parted(x, 1, 0n).map(row => indexed(row, 0n))).reduce((a, b) => operated("+", a, b), 0n),
    float: x => isNumber(x) ? Number(x) : beyond("float"),
    int: x => isNumber(x) ? BigInt(Math.trunc(Number(x))) : beyond("int"),
  };
  const attribute = (value, name) => {
    if (value?.path) return { path: `${value.path}.${name}` };
    const dims = isTensor(value) ? everyDim(value.shape) : beyond(`.${name}`);
    if (name === "T") return permuted(value, dims.reverse());
    if (name === "mT") return dims.length > 1 ? transposed(value, -2n, -1n) : beyond(".mT");
    if (name === "shape") return value.shape.map(BigInt);
    return name === "ndim" ? BigInt(dims.length) : { self: value, name };
  };
  const call = (f, args, named) => {
    if (f?.builtin) return args.length === 1 && !named.length ? BUILTINS[f.builtin](args[0]) : beyond(f.builtin);
    if (f?.name === "where") return called("torch", "where", [args[0], f.self, ...args.slice(1)], named);
    if (f?.self) return called("method", f.name, [f.self, ...args], named);
    const [, module, name] = /^(torch.*)\.(\w+)$/.exec(f?.path) ?? beyond(f?.path ?? "()");
    return called(module, name, args, named);
  };

  // ---- The parser: each part becomes a function of the names.

  const TOKEN = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|\/\/|[<>=!]=|[-+*\/%@&|^~<>()[\],.:=])|$)/y;
  const KEYWORDS = ["if", "else", "and", "or", "not", "lambda", "in", "is", "for", "await", "yield"];
  const CONSTANTS = { True: true, False: false, None: null };
  const parsed = source => {
    const all = []; // [what stands there, is it a number, where]
    for (let at = 0; at < source.length; at = TOKEN.lastIndex) {
      TOKEN.lastIndex = at;
      const [, number, name, sign] = TOKEN.exec(source) ?? beyond(source.slice(at).trim());
      if (number ?? name ?? sign) all.push([number ?? name ?? sign, Boolean(number), at]);
    }
    let n = 0;
    const is = (...words) => n < all.length && words.includes(all[n][0]);
    const takes = (...words) => is(...words) ? all[n++][0] : null;
    const stop = () => beyond(all[n] ? source.slice(all[n][2]).trim() : source.trim().slice(-20));
    const chain = (next, ...signs) => () => {
      let left = next();
      for (let sign; (sign = takes(...signs));) {
        const [op, a, b] = [sign, left, next()];
        left = scope => operated(op, a(scope), b(scope));
      }
      return left;
    };
    const separated = (part, close) => { // parts with commas, and whether there is one: (a, b,)
      const parts = [];
      let comma = null;
      while (!takes(close)) {
        parts.push(part());
        comma = takes(",");
        if (!comma) { takes(close) ?? stop(); break; }
      }
      return [parts, Boolean(comma) || parts.length !== 1];
    };
    const atom = () => {
      const [word, isNumeral] = all[n++] ?? stop();
      if (isNumeral) { const value = /^\d+$/.test(word) ? BigInt(word) : Number(word); return () => value; }
      if (word === "(" || word === "[") {
        const [items, isTuple] = separated(conditional, word === "(" ? ")" : "]");
        return isTuple || word === "[" ? scope => items.map(item => item(scope)) : items[0];
      }
      if (!/^\w/.test(word) || KEYWORDS.includes(word)) { n--; stop(); }
      return scope => Object.hasOwn(scope, word) ? scope[word] : Object.hasOwn(CONSTANTS, word) ? CONSTANTS[word]
        : word === "torch" ? { path: word } : Object.hasOwn(BUILTINS, word) ? { builtin: word } : beyond(word);
    };
    const argument = () => { // [the keyword or null, the value]
      const key = all[n + 1]?.[0] === "=" ? all[n][0] : null;
      if (key) n += 2;
      return [key, conditional()];
    };
    const subscript = () => {
      const bound = () => is(":", "]", ",") ? () => null : conditional();
      const start = bound();
      if (!takes(":")) return start;
      const stop = bound(), step = takes(":") ? bound() : () => null;
      return scope => ({ slice: true, start: start(scope), stop: stop(scope), step: step(scope) });
    };
    const postfix = () => {
      let left = atom();
      for (let sign; (sign = takes(".", "(", "["));) {
        const one = left;
        if (sign === ".") {
          const [name] = all[n++] ?? stop();
          left = scope => attribute(one(scope), name);
        } else if (sign === "(") {
          const [parts] = separated(argument, ")");
          left = scope => {
            const given = parts.map(([key, value]) => [key, value(scope)]);
            return call(one(scope), given.filter(([key]) => !key).map(([, value]) => value), given.filter(([key]) => key));
          };
        } else {
          const [parts, isTuple] = separated(subscript, "]");
          left = scope => indexed(one(scope), isTuple ? parts.map(part => part(scope)) : parts[0](scope));
        }
      }
      return left;
    };
    const power = () => {
      const base = postfix(), exponent = takes("**") && signed();
      return exponent ? scope => operated("**", base(scope), exponent(scope)) : base;
    };
    const signed = () => {
      const sign = takes("-", "~"), value = sign ? signed() : power();
      return sign === "-" ? scope => negated(value(scope)) : sign === "~" ? scope => inverted(value(scope)) : value;
    };
    const sum = chain(chain(signed, "*", "/", "//", "%", "@"), "+", "-");
    const bits = chain(chain(chain(sum, "&"), "^"), "|");
    const compared = () => { // a < b < c is (a < b) and (b < c)
      const values = [bits()], signs = [];
      for (let sign; (sign = takes(...COMPARISONS));) { signs.push(sign); values.push(bits()); }
      return !signs.length ? values[0] : scope => signs.reduce(([result, left], sign, k) => {
        if (k && !isTrue(result)) return [result, left];
        const right = values[k + 1](scope);
        return [operated(sign, left, right), right];
      }, [true, values[0](scope)])[0];
    };
    const denied = () => {
      if (!takes("not")) return compared();
      const value = denied();
      return scope => !isTrue(value(scope));
    };
    const logical = (next, word, decides) => () => {
      let left = next();
      while (takes(word)) {
        const [a, b] = [left, next()];
        left = scope => { const value = a(scope); return isTrue(value) === decides ? value : b(scope); };
      }
      return left;
    };
    const either = logical(logical(denied, "and", false), "or", true);
    const conditional = () => {
      const value = either();
      if (!takes("if")) return value;
      const condition = either(), other = takes("else") ? conditional() : stop();
      return scope => isTrue(condition(scope)) ? value(scope) : other(scope);
    };
    const line = conditional();
    return n < all.length ? stop() : line;
  };

  return Object.assign((source, names) => parsed(source)(names), { Beyond, Wrong, Tensor, isTensor, isNumber, said });
})();

"""Executes the PTX of one thread block in numpy: what the compiler made of a kernel, run without a GPU.

All threads of a block step together, so control flow must be uniform; that is stronger than the machine's own order, and
races stay unseen. Registers are uint64 arrays over the threads, memory is one array of bytes, shared memory another. Known
are the instructions that Triton's kernels here contain; an unknown one raises.
"""

import re
from collections.abc import Callable

import numpy as np

WARP = 32
LOW = np.uint64(0xFFFFFFFF)
COMPARE: dict[str, Callable] = {
    "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
LOGIC: dict[str, Callable] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.]*)\s*(.*);$")
ADDRESS = re.compile(r"\[\s*(%\w+|global_smem)\s*(?:\+\s*(-?\d+))?\s*\]$")


def floats(bits):
    return bits.astype(np.uint32).view(np.float32)


def bits(values):
    return np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)


def from_bf16(half):
    return (half.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    b = bits(values)
    return ((b + ((b >> np.uint64(16)) & np.uint64(1)) + np.uint64(0x7FFF)) >> np.uint64(16)) & np.uint64(0xFFFF)


def from_half(half, kind):
    half = (half & np.uint64(0xFFFF)).astype(np.uint16)
    return from_bf16(half) if kind == "bf16" else half.view(np.float16).astype(np.float32)


def signed(x, width=32):
    return x.astype(f"u{width // 8}").view(f"i{width // 8}").astype(np.int64)


def unsigned(x):
    return np.asarray(x).astype(np.int64).astype(np.uint64)


def split(text):
    """Operands at the commas outside braces."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{\[][^,]*", text)]


def listed(operand):
    return [part.strip() for part in operand.strip("{} ").split(",")]


def width_of(kind):
    return 64 if kind.endswith("64") else 16 if kind.endswith("16") else 8 if kind.endswith("8") else 32


class Block:
    programs = 1

    def __init__(self, ptx: str, parameters: list[int], memory: np.ndarray, block: int, threads: int):
        self.lines = [line.split("//")[0].strip().replace("shared::cta", "shared") for line in ptx.splitlines()]
        found = ((re.match(r"(\$L__BB\w+):", line), n) for n, line in enumerate(self.lines))
        self.labels = {match[1]: n for match, n in found if match}
        self.parameters, self.memory, self.block, self.threads = parameters, memory, block, threads
        self.thread = np.arange(threads)
        self.lane = self.thread % WARP
        self.shared = np.zeros(1 << 18, np.uint8)
        self.registers: dict[str, np.ndarray] = {}
        self.mask: np.ndarray | None = None

    def value(self, text):
        special = {"%tid.x": self.thread, "%laneid": self.lane}
        if text in special:
            return special[text].astype(np.uint64)
        if text.startswith(("%ctaid", "%nctaid")):
            return np.full(self.threads, self.programs if text[1] == "n" else self.block, np.uint64)
        if text.startswith("%"):
            return self.registers[text]
        if text == "global_smem":
            text = "0"
        if "_param_" in text:  # its address: its number
            text = text.rsplit("_", 1)[1]
        # 0f precedes the bits of a float, 0x those of an integer, which U may end
        number = int(text[2:].rstrip("U"), 16) if re.match("0[fx]", text) else int(text)
        return np.full(self.threads, number & (2**64 - 1), np.uint64)

    def put(self, name, value, width=32):
        value = np.asarray(value).astype(np.uint64)
        if width < 64:
            value = value & np.uint64(2**width - 1)
        if self.mask is not None and not self.mask.all():
            value = np.where(self.mask, value, self.registers.get(name, np.zeros(self.threads, np.uint64)))
        self.registers[name] = value

    def address(self, text):
        match = ADDRESS.match(text)
        assert match is not None, text
        return self.value(match[1]) + np.uint64(int(match[2] or 0))

    def run(self):
        at = next(n for n, line in enumerate(self.lines) if line.startswith("{"))
        while True:
            line = self.lines[at]
            at += 1
            if not line or line[0] in ".${}":
                continue
            match = INSTRUCTION.match(line)
            assert match is not None, line
            negated, predicate, name, rest = match.groups()
            self.mask = None if predicate is None else self.registers[predicate].astype(bool) ^ bool(negated)
            if name.startswith("bra"):
                if self.mask is None or self.mask.all():
                    at = self.labels[rest]
                assert self.mask is None or self.mask.all() or not self.mask.any(), "threads part"
            elif name == "ret":
                return
            else:
                self.step(name.split("."), split(rest), line)

    def step(self, name, a, line):
        family = name[0]
        if family == "bar" or name[-1] in ("commit_group", "wait_group"):
            return
        handler = getattr(self, f"do_{family}", None)
        if handler is not None:
            return handler(name, a)
        self.arithmetic(name, a, line)

    def arithmetic(self, name, a, line):
        family, kind = name[0], name[-1]
        x = [self.value(text) for text in a[1:]]
        if kind == "f32":
            return self.put(a[0], bits(self.real(family, [floats(v) for v in x], line)))
        if kind == "pred":
            return self.put(a[0], 1 - x[0] if family == "not" else LOGIC[family](*x))
        width = width_of(kind)
        integers = [signed(v, width) for v in x] if kind[0] == "s" else x
        table: dict[str, Callable] = {
            **{key: lambda f=f: f(x[0], x[1]) for key, f in LOGIC.items()},
            "not": lambda: ~x[0], "neg": lambda: unsigned(-signed(x[0], width)),
            "add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1],
            "shl": lambda: x[0] << x[1],
            "shr": lambda: unsigned(integers[0] >> integers[1]) if kind[0] == "s" else (x[0] & np.uint64(2**width - 1)) >> x[1],
            "min": lambda: unsigned(np.minimum(*integers)), "max": lambda: unsigned(np.maximum(*integers)),
            "div": lambda: unsigned(np.fix(signed(x[0]) / np.where(x[1] == 0, 1, signed(x[1])))),
            "rem": lambda: x[0] % np.where(x[1] == 0, np.uint64(1), x[1]),
            "popc": lambda: np.array([int(v).bit_count() for v in x[0] & LOW]),
            "selp": lambda: np.where(x[2].astype(bool), x[0], x[1]),
        }  # fmt: skip
        assert family in table, line
        self.put(a[0], table[family](), width)

    def real(self, family, x, line):
        table: dict[str, Callable] = {
            "mul": lambda: x[0] * x[1], "add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "div": lambda: x[0] / x[1],
            "fma": lambda: x[0].astype(np.float64) * x[1] + x[2], "max": lambda: np.fmax(*x), "min": lambda: np.fmin(*x),
            "ex2": lambda: np.exp2(x[0]), "neg": lambda: -x[0], "abs": lambda: np.abs(x[0]), "rcp": lambda: 1 / x[0],
            "rsqrt": lambda: 1 / np.sqrt(x[0]),
        }  # fmt: skip
        if family == "selp":
            raise AssertionError(line)
        assert family in table, line
        with np.errstate(all="ignore"):
            return table[family]()

    def do_selp(self, name, a):
        chosen = self.registers[a[3]].astype(bool)
        self.put(a[0], np.where(chosen, self.value(a[1]), self.value(a[2])), width_of(name[-1]))

    def do_mul(self, name, a):
        if name[-1] == "f32":
            return self.arithmetic(name, a, " ".join(a))
        x, y = self.value(a[1]), self.value(a[2])
        width = width_of(name[-1])
        if name[1] == "hi":  # as Python's integers, which do not wrap
            x, y = ((signed(v, width) if name[-1][0] == "s" else v & np.uint64(2**width - 1)).tolist() for v in (x, y))
            high = [(one * other >> width) & (2**64 - 1) for one, other in zip(x, y, strict=True)]
            return self.put(a[0], np.array(high, np.uint64), width)
        if name[1] == "wide":
            x, y = (unsigned(signed(v)) if name[-1] == "s32" else v & LOW for v in (x, y))
            width = 64
        product = x * y
        self.put(a[0], product + self.value(a[3]) if name[0] == "mad" else product, width)

    do_mad = do_mul

    def do_ld(self, name, a):
        if name[1] == "param":
            place = a[1].strip("[ ]")
            number = int(place.rsplit("_", 1)[1]) if "_param_" in place else int(self.address(a[1])[0])
            return self.put(a[0], np.full(self.threads, self.parameters[number], np.uint64), 64)
        memory, size = self.shared if "shared" in name else self.memory, width_of(name[-1]) // 8
        place = self.address(a[1])
        for n, register in enumerate(listed(a[0])):
            cut = [memory[int(p) + n * size : int(p) + (n + 1) * size].tobytes() for p in place]
            self.put(register, np.array([int.from_bytes(b, "little") for b in cut], np.uint64), 64)

    def do_st(self, name, a):
        memory, size = self.shared if "shared" in name else self.memory, width_of(name[-1]) // 8
        place, values = self.address(a[0]), [self.value(register) for register in listed(a[1])]
        for thread in self.active():
            for n, value in enumerate(values):
                start = int(place[thread]) + n * size
                memory[start : start + size] = np.frombuffer(int(value[thread]).to_bytes(8, "little")[:size], np.uint8)

    def active(self):
        return self.thread if self.mask is None else self.thread[self.mask]

    def do_cp(self, name, a):
        to, source, size = self.address(a[0]), self.address(a[1]), int(a[2], 0)
        given = self.value(a[3]) if len(a) > 3 else np.full(self.threads, size, np.uint64)
        for thread in self.active():
            start, n = int(to[thread]), int(given[thread])
            self.shared[start : start + size] = 0
            self.shared[start : start + n] = self.memory[int(source[thread]) : int(source[thread]) + n]

    def do_mov(self, name, a):
        whole = width_of(name[-1])
        if a[0].startswith("{"):
            value, part = self.value(a[1]), whole // 2
            for n, register in enumerate(listed(a[0])):
                self.put(register, value >> np.uint64(part * n), part)
        elif a[1].startswith("{"):
            part = whole // 2
            pieces = [
                (self.value(r) & np.uint64(2**part - 1)) << np.uint64(part * n) for n, r in enumerate(listed(a[1]))
            ]
            self.put(a[0], pieces[0] | pieces[1], whole)
        else:
            self.put(a[0], self.value(a[1]), whole)

    def do_cvt(self, name, a):
        x, kinds = [self.value(text) for text in a[1:]], name[1:]
        to, source = kinds[-2], kinds[-1]
        if "tf32" in kinds:
            return self.put(a[0], (x[0] + np.uint64(0x1000)) & np.uint64(0xFFFFE000))
        if to in ("bf16x2", "f16x2"):
            high, low = (self.half(v, to[:-2]) for v in x)
            return self.put(a[0], (high << np.uint64(16)) | low)
        if to in ("bf16", "f16"):
            return self.put(a[0], self.half(x[0], to), 16)
        if to == "f32":
            value = signed(x[0]).astype(np.float32) if source == "s32" else from_half(x[0], source)
            return self.put(a[0], bits(value))
        if source[0] == "s":
            value = unsigned(signed(x[0], width_of(source)))
        else:
            value = x[0] & LOW if source == "u32" else x[0]
        self.put(a[0], value, width_of(to))

    @staticmethod
    def half(x, kind):
        return to_bf16(floats(x)) if kind == "bf16" else floats(x).astype(np.float16).view(np.uint16).astype(np.uint64)

    def do_setp(self, name, a):
        x, y, kind, test = self.value(a[1]), self.value(a[2]), name[-1], name[1]
        if kind == "f32":
            x, y = floats(x), floats(y)
            unordered = np.isnan(x) | np.isnan(y)
            if test in ("num", "nan"):
                return self.put(a[0], unordered ^ (test == "num"))
            found = COMPARE[test[:2]](x, y)
            return self.put(a[0], found | unordered if len(test) == 3 else found)
        width = width_of(kind)
        x, y = (signed(v, width) if kind[0] == "s" else v & np.uint64(2**width - 1) for v in (x, y))
        self.put(a[0], COMPARE[test](x, y))

    def do_prmt(self, name, a):
        """Four bytes picked out of eight."""
        eight, pick = (self.value(a[1]) & LOW) | (self.value(a[2]) << np.uint64(32)), self.value(a[3])
        found = np.zeros(self.threads, np.uint64)
        for n in range(4):
            byte = (pick >> np.uint64(4 * n)) & np.uint64(7)
            found |= ((eight >> (byte * np.uint64(8))) & np.uint64(255)) << np.uint64(8 * n)
        self.put(a[0], found)

    def do_bfe(self, name, a):
        start, length = int(self.value(a[2])[0]), int(self.value(a[3])[0])
        found = ((self.value(a[1]) & LOW) >> np.uint64(start)) & np.uint64(2**length - 1)
        if name[-1] == "s32":
            found = np.where(found >> np.uint64(length - 1), found | np.uint64((2**64 - 1) ^ (2**length - 1)), found)
        self.put(a[0], found)

    def do_shfl(self, name, a):
        value, by = self.value(a[1]), self.value(a[2]).astype(np.int64)
        base, lane = self.thread - self.lane, self.lane
        source = {"bfly": lane ^ by, "up": np.where(lane >= by, lane - by, lane), "idx": by % WARP}[name[2]]
        self.put(a[0], value[base + source])

    def do_ldmatrix(self, name, a):
        load = name[0] == "ldmatrix"
        place, registers = self.address(a[1 if load else 0]), listed(a[0 if load else 1])
        row, column = self.lane // 4, self.lane % 4 * 2
        for j, register in enumerate(registers):
            base = self.thread - self.lane + 8 * j
            value = None if load else self.value(register)
            found = np.zeros(self.threads, np.uint64)
            for n in range(2):
                r, c = (column + n, row) if "trans" in name else (row, column + n)
                for thread, start in enumerate(place[base + r] + 2 * c.astype(np.uint64)):
                    cut = slice(int(start), int(start) + 2)
                    if value is None:
                        found[thread] |= np.uint64(int.from_bytes(self.shared[cut].tobytes(), "little") << (16 * n))
                    else:
                        word = (int(value[thread]) >> (16 * n)) & 0xFFFF
                        self.shared[cut] = np.frombuffer(word.to_bytes(2, "little"), np.uint8)
            if load:
                self.put(register, found)

    do_stmatrix = do_ldmatrix

    def do_mma(self, name, a):
        """m16n8k8 of tf32 or m16n8k16 of half words; fragments as PTX lays them out."""
        left, right, start = ([self.value(r) for r in listed(operand)] for operand in a[1:])
        result = [np.zeros(self.threads, np.float32) for _ in range(4)]
        g, t = np.arange(WARP) // 4, np.arange(WARP) % 4
        for first in range(0, self.threads, WARP):
            cut = slice(first, first + WARP)
            A, B = np.zeros((16, 16)), np.zeros((16, 8))
            for n, value in enumerate(left):
                r, c = g + 8 * (n % 2), n // 2
                if "tf32" in name:
                    A[r, t + 4 * c] = floats(value[cut] & np.uint64(0xFFFFE000))
                else:
                    for half in range(2):
                        A[r, 2 * t + half + 8 * c] = from_half(value[cut] >> np.uint64(16 * half), name[-2])
            for n, value in enumerate(right):
                if "tf32" in name:
                    B[t + 4 * n, g] = floats(value[cut] & np.uint64(0xFFFFE000))
                else:
                    for half in range(2):
                        B[2 * t + half + 8 * n, g] = from_half(value[cut] >> np.uint64(16 * half), name[-2])
            product = A @ B
            for n in range(4):
                result[n][cut] = floats(start[n][cut]) + product[g + 8 * (n // 2), 2 * t + n % 2]
        for register, value in zip(listed(a[0]), result, strict=True):
            self.put(register, bits(value))

//! A fast path for plain entries, the CFI that compilers write for nearly every function, in one pass over
//! its bytes.
//!
//! In a plain entry, the CFA is at an offset from the stack or frame pointer, and registers are saved at
//! offsets from it: ten kinds of instructions express this. An entry with anything else, such as an
//! expression, is left to gimli (`cfi`, `translate`) from its start. So this has no errors of its own: a
//! plain entry has the same rows either way, four times faster.

use gimli::{CallFrameInstruction, CommonInformationEntry, DwEhPe, constants};

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::program::{FP, PC, SP};
use crate::translate::Slice;

/// Number of registers that are tracked: on x86-64 the general ones and the return address, by DWARF number;
/// on AArch64 those that rules use, by the numbers of their counterparts.
const REGISTERS: usize = 17;
/// Number of AArch64 columns: general registers, columns that are not saved, vector registers.
const AARCH64_COLUMNS: usize = 96;
/// Maximum number of remembered states: compilers use one, gimli supports two at least.
const MAX_REMEMBERED: usize = 2;

/// Rule of a row for one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlainSave {
    /// The row has no rule for it.
    #[default]
    Unmentioned,
    /// The register still has the caller's value.
    Same,
    /// The caller's value is lost.
    Undefined,
    /// In the slot at this offset from the CFA, in bytes.
    AtCfa(i32),
}

/// A row of a plain entry: `cfa = register + offset`, and a rule for each register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRow {
    pub(crate) cfa_register: u8,
    pub(crate) cfa_offset: i32,
    pub(crate) kept: [PlainSave; REGISTERS],
    /// True if the return address has an authentication code.
    pub(crate) signed: bool,
}

/// A CIE that plain FDEs can refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainCie {
    /// Row at the start of each function.
    initial: PlainRow,
    factors: Factors,
    /// Bytes of augmentation data of an FDE: a pointer to exception handling data, or none.
    augmentation_bytes: u8,
}

/// Factors of the operands of instructions, and the architecture of their registers.
#[derive(Clone, Copy, Debug)]
struct Factors {
    architecture: Architecture,
    code: u64,
    data: i32,
}

/// A plain FDE: its code range and instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFde<'a> {
    pub(crate) start: Svma,
    pub(crate) end: Svma,
    instructions: &'a [u8],
}

impl PlainCie {
    /// Returns the plain form of a CIE; `None` if anything in it is unusual.
    pub(crate) fn of<'a>(
        cie: &CommonInformationEntry<Slice<'a>>,
        architecture: Architecture,
        instructions: impl IntoIterator<Item = gimli::Result<CallFrameInstruction<usize>>>,
    ) -> Option<Self> {
        const FDE_POINTER: u8 = constants::DW_EH_PE_pcrel.0 | constants::DW_EH_PE_sdata4.0;
        let is_common = cie.version() == 1
            && cie.fde_address_encoding() == Some(DwEhPe(FDE_POINTER))
            && architecture.plain_index(cie.return_address_register().0.into()) == Some(Some(PC.into()))
            && !cie.is_signal_trampoline();
        let augmentation_bytes = match cie.lsda_encoding() {
            None => 0,
            Some(DwEhPe(FDE_POINTER)) => 4,
            Some(_) => return None,
        };
        // On x86-64, compilers always write 1 and -8; on AArch64, they vary.
        let factors = Factors {
            architecture,
            code: cie.code_alignment_factor(),
            data: i32::try_from(cie.data_alignment_factor()).ok()?,
        };
        if !(1..=4).contains(&factors.code) {
            return None;
        }
        let initial = initial_row(instructions, factors).filter(|_| is_common)?;
        Some(Self {
            initial,
            factors,
            augmentation_bytes,
        })
    }

    /// Returns the FDE of this CIE at `at` in a section at `svma`; `None` if it is not plain.
    pub(crate) fn fde<'a>(&self, section: Bytes<'a>, svma: Svma, at: u64) -> Option<PlainFde<'a>> {
        // Fields: length, reference to the CIE, address, length of the code, length of the augmentation data.
        const ADDRESS: u64 = 8;
        const CODE_LENGTH: u64 = 12;
        const AUGMENTATION: u64 = 16;
        let bytes = section.at(at + 4, section.u32(at)?.into())?;
        let entry = section.at(at, 4 + bytes.len())?;
        let relative = i64::from(entry.u32(ADDRESS)?.cast_signed());
        let place = svma.checked_add(at + ADDRESS)?;
        let start = Svma::new(place.get().checked_add_signed(relative)?);
        let length = u64::try_from(entry.u32(CODE_LENGTH)?.cast_signed()).ok()?;
        let end = start.checked_add(length)?;
        if entry.u8(AUGMENTATION)? != self.augmentation_bytes || start >= end {
            return None;
        }
        let first = AUGMENTATION + 1 + u64::from(self.augmentation_bytes);
        let instructions = entry.at(first, entry.len().checked_sub(first)?)?.0;
        Some(PlainFde {
            start,
            end,
            instructions,
        })
    }

    /// Calls `row` with start, end and content of each row of `fde`. Returns `None`, possibly after some
    /// rows, if the entry is not plain or `row` returns `None`.
    pub(crate) fn rows(
        &self,
        fde: &PlainFde<'_>,
        mut row: impl FnMut(Svma, Svma, &PlainRow) -> Option<()>,
    ) -> Option<()> {
        let mut state = State {
            row: self.initial,
            initial: &self.initial,
            factors: self.factors,
            remembered: [self.initial; MAX_REMEMBERED],
            depth: 0,
        };
        let mut cursor = Cursor(fde.instructions);
        let mut start = fde.start;
        while let Some(opcode) = cursor.byte() {
            if let Some(delta) = cursor.advance(opcode)? {
                let next = start.checked_add(delta * self.factors.code)?;
                row(start, next, &state.row)?;
                start = next;
            } else {
                state.execute(opcode, &mut cursor)?;
            }
        }
        row(start, fde.end, &state.row)
    }
}

/// Returns the row that a CIE's instructions produce; `None` without a plain CFA.
fn initial_row(
    instructions: impl IntoIterator<Item = gimli::Result<CallFrameInstruction<usize>>>,
    factors: Factors,
) -> Option<PlainRow> {
    let mut cfa = None;
    let mut kept = [PlainSave::Unmentioned; REGISTERS];
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "whatever else there is, is not plain"
    )]
    for instruction in instructions {
        match instruction.ok()? {
            CallFrameInstruction::Nop => {}
            CallFrameInstruction::DefCfa { register, offset } => {
                cfa = Some((u8::try_from(register.0).ok()?, i32::try_from(offset).ok()?));
            }
            CallFrameInstruction::Offset {
                register,
                factored_offset,
            } => {
                if let Some(index) = factors.architecture.plain_index(register.0.into())? {
                    kept[index] = factors.slot(factored_offset)?;
                }
            }
            _ => return None,
        }
    }
    let (cfa_register, cfa_offset) = cfa?;
    Some(PlainRow {
        cfa_register,
        cfa_offset,
        kept,
        signed: false,
    })
}

impl Factors {
    /// Returns the rule for a slot at a factored offset from the CFA.
    fn slot(self, units: u64) -> Option<PlainSave> {
        let offset = i32::try_from(units).ok()?.checked_mul(self.data)?;
        Some(PlainSave::AtCfa(offset))
    }
}

impl Architecture {
    /// Returns the index of a column in a row; the inner `None` for a register that rules do not use, the
    /// outer for one that makes the entry not plain.
    fn plain_index(self, column: usize) -> Option<Option<usize>> {
        match (self, column) {
            (Self::X86_64, 0..REGISTERS) => Some(Some(column)),
            (Self::X86_64, _) | (Self::Aarch64, AARCH64_COLUMNS.. | 34) => None,
            (Self::Aarch64, 29) => Some(Some(FP.into())),
            (Self::Aarch64, 30) => Some(Some(PC.into())),
            (Self::Aarch64, 31) => Some(Some(SP.into())),
            (Self::Aarch64, _) => Some(None),
        }
    }
}

struct State<'a> {
    row: PlainRow,
    initial: &'a PlainRow,
    factors: Factors,
    remembered: [PlainRow; MAX_REMEMBERED],
    depth: usize,
}

/// Mask of the upper two bits, the opcode of an instruction with its operand in the lower six.
const PRIMARY: u8 = 0xc0;

impl State<'_> {
    /// Executes an instruction that does not advance.
    fn execute(&mut self, opcode: u8, cursor: &mut Cursor<'_>) -> Option<()> {
        let in_opcode = usize::from(opcode & !PRIMARY);
        match constants::DwCfa(opcode & PRIMARY) {
            constants::DW_CFA_offset => return self.save(in_opcode, cursor.uleb()?),
            constants::DW_CFA_restore => return self.restore(in_opcode),
            _ => {}
        }
        match constants::DwCfa(opcode) {
            constants::DW_CFA_nop => {}
            constants::DW_CFA_def_cfa => {
                self.row.cfa_register = u8::try_from(cursor.uleb()?).ok()?;
                self.row.cfa_offset = i32::try_from(cursor.uleb()?).ok()?;
            }
            constants::DW_CFA_def_cfa_register => {
                self.row.cfa_register = u8::try_from(cursor.uleb()?).ok()?;
            }
            constants::DW_CFA_def_cfa_offset => {
                self.row.cfa_offset = i32::try_from(cursor.uleb()?).ok()?;
            }
            constants::DW_CFA_offset_extended => {
                let register = cursor.register()?;
                self.save(register, cursor.uleb()?)?;
            }
            constants::DW_CFA_restore_extended => self.restore(cursor.register()?)?,
            constants::DW_CFA_undefined => self.keep(cursor.register()?, PlainSave::Undefined)?,
            constants::DW_CFA_same_value => self.keep(cursor.register()?, PlainSave::Same)?,
            constants::DW_CFA_remember_state => {
                *self.remembered.get_mut(self.depth)? = self.row;
                self.depth += 1;
            }
            constants::DW_CFA_restore_state => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = self.remembered[self.depth];
            }
            constants::DW_CFA_GNU_args_size => _ = cursor.uleb()?,
            constants::DW_CFA_AARCH64_negate_ra_state
                if self.factors.architecture == Architecture::Aarch64 =>
            {
                self.row.signed ^= true;
            }
            _ => return None,
        }
        Some(())
    }

    fn keep(&mut self, register: usize, kept: PlainSave) -> Option<()> {
        if let Some(index) = self.factors.architecture.plain_index(register)? {
            self.row.kept[index] = kept;
        }
        Some(())
    }

    fn save(&mut self, register: usize, units: u64) -> Option<()> {
        self.keep(register, self.factors.slot(units)?)
    }

    fn restore(&mut self, register: usize) -> Option<()> {
        if let Some(index) = self.factors.architecture.plain_index(register)? {
            self.row.kept[index] = self.initial.kept[index];
        }
        Some(())
    }
}

/// Remaining instructions.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (&first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns the distance that `opcode` advances; the inner `None` if it is not an advance.
    fn advance(&mut self, opcode: u8) -> Option<Option<u64>> {
        if opcode & PRIMARY == constants::DW_CFA_advance_loc.0 {
            return Some(Some(u64::from(opcode & !PRIMARY)));
        }
        let delta = match constants::DwCfa(opcode) {
            constants::DW_CFA_advance_loc1 => u64::from(self.byte()?),
            constants::DW_CFA_advance_loc2 => u64::from(u16::from_le_bytes(self.array()?)),
            constants::DW_CFA_advance_loc4 => u64::from(u32::from_le_bytes(self.array()?)),
            _ => return Some(None),
        };
        Some(Some(delta))
    }

    fn register(&mut self) -> Option<usize> {
        usize::try_from(self.uleb()?).ok()
    }

    /// Reads a ULEB128 of up to four bytes; an entry with a longer one is not plain.
    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::cfi::{self, Cfi, Layout};
    use crate::elf::CfiSection;
    use crate::program::Programs;
    use crate::saves::LongSaves;

    const CODE: u64 = 0x10_0000;
    const CODE_BYTES: u32 = 0x100;

    /// Returns an entry: its length, then `body`, padded with nops.
    fn entry(body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let length = u32::try_from(body.len()).expect("a short entry");
        [&length.to_le_bytes()[..], &body].concat()
    }

    /// Returns a section, loaded at 0, of one CIE whose instructions end in `last`, and an FDE for each of
    /// `functions`.
    fn section(architecture: Architecture, last: &[u8], functions: &[Vec<u8>]) -> Vec<u8> {
        let common: &[u8] = match architecture {
            Architecture::X86_64 => b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01",
            Architecture::Aarch64 => b"\0\0\0\0\x01zR\0\x04\x7c\x1e\x01\x1b\x0c\x1f\x00",
        };
        let mut section = entry(&[common, last].concat());
        for (function, number) in functions.iter().zip(0_u64..) {
            let at = section.len() as u64;
            let start = CODE + number * u64::from(CODE_BYTES);
            let relative = u32::try_from(start - (at + 8)).expect("it lies behind");
            let reference = u32::try_from(at + 4).expect("a short section");
            let fields = [reference, relative, CODE_BYTES].map(u32::to_le_bytes);
            section.extend(entry(&[fields.as_flattened(), b"\0", function].concat()));
        }
        section
    }

    fn read<T: cfi::Translate>(architecture: Architecture, section: &[u8], rules: &mut T) -> Cfi<T::Rule> {
        let section = CfiSection {
            data: Cow::Borrowed(section),
            svma: Svma::new(0),
            exact: true,
        };
        let code = Svma::new(CODE)..Svma::new(2 * CODE);
        cfi::read(&section, Layout::EhFrame, architecture, &[code], rules).expect("few rows")
    }

    fn instruction() -> impl Strategy<Value = Vec<u8>> {
        let common = || prop_oneof![Just(3_u8), Just(6), Just(7), Just(12), Just(16), 0..20_u8];
        let register = move || prop_oneof![common(), 29..32_u8, 19..35_u8];
        prop_oneof![
            6 => (1..64_u8).prop_map(|delta| vec![0x40 | delta]),
            1 => any::<u8>().prop_map(|delta| vec![0x02, delta]),
            1 => any::<u8>().prop_map(|delta| vec![0x03, delta, 0]),
            1 => any::<u8>().prop_map(|delta| vec![0x04, delta, 0, 0, 0]),
            3 => (register(), any::<u16>()).prop_map(|(number, offset)| {
                vec![0x0c, number, offset.to_le_bytes()[0] | 0x80, offset.to_le_bytes()[1] & 0x7f]
            }),
            3 => (0..128_u8).prop_map(|offset| vec![0x0e, offset]),
            3 => register().prop_map(|number| vec![0x0d, number]),
            6 => (register(), 0..128_u8).prop_map(|(number, slot)| vec![0x80 | number, slot]),
            2 => register().prop_map(|number| vec![0xc0 | number]),
            1 => (60..100_u8, 0..128_u8).prop_map(|(number, slot)| vec![0x05, number, slot]),
            1 => (60..100_u8).prop_map(|number| vec![0x06, number]),
            2 => Just(vec![0x2d]),
            2 => Just(vec![0x0a]),
            2 => Just(vec![0x0b]),
            1 => register().prop_map(|number| vec![0x07, number]),
            1 => register().prop_map(|number| vec![0x08, number]),
            1 => (0..128_u8).prop_map(|bytes| vec![0x2e, bytes]),
            1 => (register(), 0..128_u8).prop_map(|(number, value)| vec![0x14, number, value]),
            1 => (register(), register()).prop_map(|(of, to)| vec![0x09, of, to]),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ]
    }

    proptest! {
        /// Whatever its instructions, an entry has the same rows as when gimli reads it, by an equivalent CIE
        /// with an instruction that is not plain.
        #[test]
        fn plain_entries_equal_gimlis(
            architecture in prop_oneof![Just(Architecture::X86_64), Just(Architecture::Aarch64)],
            functions in vec(vec(instruction(), 0..12).prop_map(|parts| parts.concat()), 1..6),
        ) {
            let [plain, by_gimli] = [[0, 0], [0x2e, 0]].map(|last| section(architecture, &last, &functions));
            let parts = |cfi: &Cfi<_>| (cfi.rows.clone(), cfi.functions.clone(), cfi.fdes, cfi.malformed);
            let (mut first, mut second) = (Programs::new(architecture), Programs::new(architecture));
            let [plainly, by_gimlis] =
                [read(architecture, &plain, &mut first), read(architecture, &by_gimli, &mut second)];
            prop_assert_eq!(parts(&plainly), parts(&by_gimlis));
            prop_assert_eq!(first.ops(), second.ops());
            if architecture == Architecture::Aarch64 {
                return Ok(());
            }
            let (mut first, mut second) = (LongSaves::default(), LongSaves::default());
            let [plain, by_gimli] =
                [read(architecture, &plain, &mut first), read(architecture, &by_gimli, &mut second)];
            prop_assert_eq!((plain.rows, plain.functions), (by_gimli.rows, by_gimli.functions));
            prop_assert_eq!(first.words(), second.words());
        }
    }

    /// The CFI that a compiler writes for a function is plain: `push %rbx`, `sub $16, %rsp`, an early return,
    /// and all undone.
    #[test]
    fn compiled_functions_are_plain() {
        let function =
            b"\x41\x0e\x10\x83\x02\x44\x0e\x20\x50\x0a\x0e\x10\x41\x0e\x08\x41\x0b\x50\xc3\x0e\x08";
        let section = section(Architecture::X86_64, &[0, 0], &[function.to_vec()]);
        let mut initial = [PlainSave::Unmentioned; REGISTERS];
        initial[REGISTERS - 1] = PlainSave::AtCfa(-8);
        let cie = PlainCie {
            initial: PlainRow {
                cfa_register: 7,
                cfa_offset: 8,
                kept: initial,
                signed: false,
            },
            factors: Factors {
                architecture: Architecture::X86_64,
                code: 1,
                data: -8,
            },
            augmentation_bytes: 0,
        };
        let at = 4 + u64::from(Bytes(&section).u32(0).expect("a length"));
        let fde = cie.fde(Bytes(&section), Svma::new(0), at).expect("a plain FDE");
        let mut rows = Vec::new();
        let done = cie.rows(&fde, |start, _, row| {
            rows.push((start.get() - CODE, row.cfa_offset, row.kept[3]));
            Some(())
        });
        assert_eq!(done, Some(()));
        let (same, saved) = (PlainSave::Unmentioned, PlainSave::AtCfa(-16));
        let expected = [
            (0, 8, same),
            (1, 16, saved),
            (5, 32, saved),
            (21, 16, saved),
            (22, 8, saved),
            (23, 32, saved),
            (39, 8, same),
        ];
        assert_eq!(rows, expected);
    }
}

//! Places of the fields of mimalloc's structures, by version: `mi_segment_t`, `mi_page_t`, `mi_heap_t`
//! (`include/mimalloc/types.h` of 2.0.9, 2.1.2, 2.1.7, 2.1.9, 2.2.2, 2.2.4,
//! 2.3.2 and 2.4.1).
//!
//! A form is not chosen by a version: it has to divide segments into pages without a rest, and pages into
//! blocks.

/// Places in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// In a segment: number of pages in use, and the word that is the segment's address, changed by a word of
    /// the process.
    pub used: u64,
    pub cookie: u64,
    /// In a segment: numbers of its slices, and of those for its own record; whether it has one huge page;
    /// number of entries for slices; and the owning thread, in consecutive words.
    pub slices: u64,
    /// In a segment: the first entry; and bytes of an entry, which is the record of a page.
    pub entries: u64,
    pub entry: u64,
    pub page: PageForm,
    /// In a heap: the thread, and the list of blocks that other threads have freed.
    pub thread: u64,
    pub delayed: u64,
    /// In a heap: keys of that list, if links are encoded.
    pub heap_keys: Option<u64>,
}

/// Places in the record of a page, whose first words are numbers of slices and of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageForm {
    /// Words: lists of free blocks, and of blocks freed by the owner.
    pub free: usize,
    pub local: usize,
    pub size: SizeForm,
    /// Word: keys of all lists, if links are encoded.
    pub keys: Option<usize>,
    /// Words: the list of blocks freed by other threads, and the heap.
    pub thread: usize,
    pub heap: usize,
}

/// Number of used blocks, and size and start of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeForm {
    /// A word: the number of used blocks, and the size, in halves. Small blocks begin some bytes behind the
    /// page's first slice.
    Halves(usize, Starts),
    /// Words: the number, in the lower 16 bits; the size; the start.
    Words(usize, usize, usize),
}

/// Bytes from a page's first slice to its blocks, by the size of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starts {
    /// 384, for blocks of 8 to 1024 bytes.
    Fixed,
    /// Three blocks of up to 64 bytes, or one of up to 512.
    Blocks,
}

impl Starts {
    pub(super) fn before(self, block: u64) -> u64 {
        match (self, block) {
            (Self::Fixed, 8..=1024) => 384,
            (Self::Blocks, 8..=64) => 3 * block,
            (Self::Blocks, 65..=512) => block,
            (Self::Fixed | Self::Blocks, _) => 0,
        }
    }
}

/// Words of the largest record of a page.
pub(super) const PAGE_WORDS: usize = 14;

/// 2.0.9.
const OLD: Form = Form {
    used: 208,
    cookie: 216,
    slices: 224,
    entries: 264,
    entry: 80,
    page: PageForm {
        free: 2,
        local: 4,
        size: SizeForm::Halves(3, Starts::Fixed),
        keys: None,
        thread: 5,
        heap: 6,
    },
    thread: 2848,
    delayed: 2840,
    heap_keys: None,
};

/// 2.1.2.
const EARLY: Form = Form {
    page: PageForm {
        size: SizeForm::Halves(3, Starts::Blocks),
        ..OLD.page
    },
    ..OLD
};

/// 2.1.7 and 2.1.9.
const MIDDLE: Form = Form {
    entry: 96,
    page: PageForm {
        free: 2,
        local: 3,
        size: SizeForm::Words(4, 5, 6),
        keys: None,
        thread: 7,
        heap: 8,
    },
    thread: 16,
    delayed: 8,
    ..OLD
};

/// 2.2, 2.3 and 2.4.
const NEW: Form = Form {
    used: 216,
    cookie: 224,
    slices: 248,
    entries: 288,
    ..MIDDLE
};

/// The form with encoded links, as secure variants have them. Keys of a page are before the list of blocks
/// freed by other threads.
const fn encoded(form: Form, heap_keys: u64) -> Form {
    let page = PageForm {
        keys: Some(form.page.thread),
        thread: form.page.thread + 2,
        heap: form.page.heap + 2,
        ..form.page
    };
    Form {
        entry: form.entry + 16,
        page,
        heap_keys: Some(heap_keys),
        ..form
    }
}

/// All forms. That of secure variants of 2.1.2 is not among them: a few freed blocks of these looked used.
pub(super) const FORMS: [Form; 7] = [
    OLD,
    EARLY,
    MIDDLE,
    NEW,
    encoded(OLD, 2872),
    encoded(MIDDLE, 40),
    encoded(NEW, 40),
];

/// Decodes the link to the next free block. `none` is what stands for the end of the list: the page's or the
/// heap's own address.
pub(super) fn decode(link: u64, keys: Option<[u64; 2]>, none: u64) -> u64 {
    let Some([first, second]) = keys else {
        return link;
    };
    let turned = link
        .wrapping_sub(first)
        .rotate_right(u32::try_from(first % 64).unwrap_or_default());
    let next = turned ^ second;
    if next == none { 0 } else { next }
}

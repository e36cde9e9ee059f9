//! Output as its readers use it: the page in a browser, text in programs that were written for bcc's memleak,
//! JSON before a validator, and flame graphs that are added up.

mod bcc;
mod flame;
mod html;
mod json_schema;

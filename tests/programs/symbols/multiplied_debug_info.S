# A function with thousands of units of debug information, each of which refers to as much as all of them together: with
# ABBREVIATIONS, to tables each of which is a suffix of the previous one; with LINES, to such rows of lines; with
# SAME_LINES, all to the same rows; with FILES, to a list of files. Never run.
	.text
	.globl	victim
	.type	victim, @function
victim:
	.fill	16, 1, 0x90
	ret
	.size	victim, . - victim

#define UNITS 20000

	.section .debug_abbrev, "", @progbits
#ifdef ABBREVIATIONS
	# Each is the beginning of a table: number, DW_TAG_compile_unit, no children, DW_AT_low_pc, DW_AT_high_pc.
	.set	number, 1
	.rept	UNITS
	.uleb128 number
	.uleb128 0x11
	.byte	0
	.uleb128 0x11, 0x01, 0x12, 0x06, 0, 0
	.set	number, number + 1
	.endr
#else
	.uleb128 1
	.uleb128 0x11
	.byte	0
	.uleb128 0x11, 0x01	# DW_AT_low_pc: DW_FORM_addr
	.uleb128 0x12, 0x06	# DW_AT_high_pc: DW_FORM_data4
	.uleb128 0x10, 0x17	# DW_AT_stmt_list: DW_FORM_sec_offset
	.uleb128 0, 0
#endif
	.byte	0

	.section .debug_info, "", @progbits
	.set	at, 0
	.rept	UNITS
	.long	2f - 1f
1:	.short	4
#ifdef ABBREVIATIONS
	.long	at
#else
	.long	0
#endif
	.byte	8
	.uleb128 1
	.quad	victim
	.long	17
#ifdef LINES
	.long	at
#elif !defined(ABBREVIATIONS)
	.long	0
#endif
2:
	.set	at, at + 16
	.endr

	.section .debug_line, "", @progbits
#ifdef LINES
	# A program's header every 16 bytes, each as long as there is anything left.
	.set	left, 16 * UNITS - 4
	.rept	UNITS
	.long	left
	.short	4
	.long	6
	.byte	1, 1, 1, 0xfb, 14, 1
	.set	left, left - 16
	.endr
#else
	.long	4f - 3f
3:	.short	4
	.long	6f - 5f
5:	.byte	1, 1, 1, 0xfb, 14, 13
	.byte	0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
	.byte	0			# no directories
#ifdef FILES
	.rept	20000
	.asciz	"f"
	.byte	0, 0, 0
	.endr
#endif
	.byte	0
6:	.fill	1000000, 1, 0x20
4:
#endif
	.section .note.GNU-stack, "", @progbits

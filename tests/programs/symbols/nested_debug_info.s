# A function whose debug information nests inlined calls a hundred thousand deep. Never run.
	.text
	.globl	victim
	.type	victim, @function
victim:
	.fill	16, 1, 0x90
	ret
	.size	victim, . - victim

	.section .debug_abbrev, "", @progbits
	.uleb128 1		# unit: DW_TAG_compile_unit, children
	.uleb128 0x11
	.byte	1
	.uleb128 0x11, 0x01	# DW_AT_low_pc: DW_FORM_addr
	.uleb128 0x12, 0x06	# DW_AT_high_pc: DW_FORM_data4
	.uleb128 0, 0
	.uleb128 2		# function: DW_TAG_subprogram, children
	.uleb128 0x2e
	.byte	1
	.uleb128 0x11, 0x01
	.uleb128 0x12, 0x06
	.uleb128 0, 0
	.uleb128 3		# inlined call: DW_TAG_inlined_subroutine, children, no attributes
	.uleb128 0x1d
	.byte	1
	.uleb128 0, 0
	.byte	0

	.section .debug_info, "", @progbits
	.long	end - start
start:
	.short	4		# DWARF version
	.long	0		# offset of abbreviations
	.byte	8		# bytes of an address
	.byte	1
	.quad	victim
	.long	17
	.byte	2
	.quad	victim
	.long	17
	.fill	100000, 1, 3
	.fill	100002, 1, 0
end:
	.section .note.GNU-stack, "", @progbits

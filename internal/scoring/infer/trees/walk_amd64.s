#include "textflag.h"

// func walk(nodes *node, columns, ends *uint32, groups, stride, steps int)
//
// A lane is the index of its node in a register. A step loads the node, compares the key with the
// lane's number in the node's column, and adds the distance to the first child and the carry, which
// is 1 if the number is greater than the key. There is no branch that depends on the row, and the
// eight lanes do not wait for each other.
//
// SI has the nodes, DI the columns of the group, CX the steps that are left, DX the distances of a
// step. AX, BX and BP are a lane's key, distance and four times the column.

#define LOAD(at) \
	MOVL (SI)(at*8), BP  \
	MOVL BP, BX          \
	ANDL $32764, BP      \
	SHRL $15, BX         \
	MOVL 4(SI)(at*8), AX

#define STEP(at, lane) \
	LOAD(at)                    \
	CMPL AX, (lane*4)(DI)(BP*8) \
	ADCL BX, at

// LAST also collects the distances. They are all 0 if all lanes are at a leaf.
#define LAST(at, lane) \
	LOAD(at)                    \
	ORL  BX, DX                 \
	CMPL AX, (lane*4)(DI)(BP*8) \
	ADCL BX, at

#define ALL(DO) \
	DO(R8, 0)  \
	DO(R9, 1)  \
	DO(R10, 2) \
	DO(R11, 3) \
	DO(R12, 4) \
	DO(R13, 5) \
	DO(R14, 6) \
	DO(R15, 7)

TEXT ·walk(SB), NOSPLIT, $8-48
	MOVQ nodes+0(FP), SI
	MOVQ columns+8(FP), DI

group:
	MOVQ ends+16(FP), DX
	MOVQ steps+40(FP), CX
	MOVL 0(DX), R8
	MOVL 4(DX), R9
	MOVL 8(DX), R10
	MOVL 12(DX), R11
	MOVL 16(DX), R12
	MOVL 20(DX), R13
	MOVL 24(DX), R14
	MOVL 28(DX), R15

four:
	CMPQ CX, $4
	JLT  rest
	ALL(STEP)
	ALL(STEP)
	ALL(STEP)
	XORL DX, DX
	ALL(LAST)
	SUBQ $4, CX
	TESTL DX, DX
	JNZ  four
	JMP  done

rest:
	TESTQ CX, CX
	JZ    done

one:
	ALL(STEP)
	DECQ CX
	JNZ  one

done:
	MOVQ ends+16(FP), DX
	MOVL R8, 0(DX)
	MOVL R9, 4(DX)
	MOVL R10, 8(DX)
	MOVL R11, 12(DX)
	MOVL R12, 16(DX)
	MOVL R13, 20(DX)
	MOVL R14, 24(DX)
	MOVL R15, 28(DX)
	ADDQ $32, DX
	MOVQ DX, ends+16(FP)
	ADDQ stride+32(FP), DI
	DECQ groups+24(FP)
	JNZ  group
	RET

#include "textflag.h"

// Four vectors of numbers become 32 bits. The results of the comparisons are packed to
// words and then to bytes. That leaves groups of four in an order that Y14 corrects.

DATA order<>+0(SB)/4, $0
DATA order<>+4(SB)/4, $4
DATA order<>+8(SB)/4, $1
DATA order<>+12(SB)/4, $5
DATA order<>+16(SB)/4, $2
DATA order<>+20(SB)/4, $6
DATA order<>+24(SB)/4, $3
DATA order<>+28(SB)/4, $7
GLOBL order<>(SB), RODATA|NOPTR, $32

// MASK32 compares 32 numbers from at; 4 is "not equal, or not a number".
#define MASK32(at, to) \
	VCMPPS    $4, (at+0)(SI), Y15, Y0   \
	VCMPPS    $4, (at+32)(SI), Y15, Y1  \
	VCMPPS    $4, (at+64)(SI), Y15, Y2  \
	VCMPPS    $4, (at+96)(SI), Y15, Y3  \
	VPACKSSDW Y1, Y0, Y0                \
	VPACKSSDW Y3, Y2, Y2                \
	VPACKSSWB Y2, Y0, Y0                \
	VPERMD    Y0, Y14, Y0               \
	VPMOVMSKB Y0, to

// func maskAVX2(x *float32, masks *uint64, n int)
TEXT ·maskAVX2(SB), NOSPLIT, $0-24
	MOVQ    x+0(FP), SI
	MOVQ    masks+8(FP), DI
	MOVQ    n+16(FP), CX
	VXORPS  Y15, Y15, Y15
	VMOVDQU order<>(SB), Y14

next:
	MASK32(0, AX)
	MASK32(128, BX)
	SHLQ $32, BX
	ORQ  BX, AX
	MOVQ AX, (DI)
	ADDQ $256, SI
	ADDQ $8, DI
	DECQ CX
	JNZ  next
	VZEROUPPER
	RET

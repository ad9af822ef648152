#include "textflag.h"

// Functions over rows of numbers, eight at a time with AVX2. SI, DI and DX point to the
// numbers, CX is the count of those left, and Y15 is the mask of the last ones.

DATA tail<>+0x00(SB)/8, $-1
DATA tail<>+0x08(SB)/8, $-1
DATA tail<>+0x10(SB)/8, $-1
DATA tail<>+0x18(SB)/8, $-1
DATA tail<>+0x20(SB)/8, $0
DATA tail<>+0x28(SB)/8, $0
DATA tail<>+0x30(SB)/8, $0
DATA tail<>+0x38(SB)/8, $0
GLOBL tail<>(SB), RODATA|NOPTR, $64

// Constants of exp and tanh.
DATA consts<>+0(SB)/4, $-104.0             // exp of a smaller number is 0
DATA consts<>+4(SB)/4, $89.0               // exp of a larger number is infinite
DATA consts<>+8(SB)/4, $1.44269504088896341 // 1/ln 2
DATA consts<>+12(SB)/4, $0.693359375        // ln 2, in two parts
DATA consts<>+16(SB)/4, $-2.12194440e-4
DATA consts<>+20(SB)/4, $1.9875691500e-4 // coefficients of exp, highest power first
DATA consts<>+24(SB)/4, $1.3981999507e-3
DATA consts<>+28(SB)/4, $8.3334519073e-3
DATA consts<>+32(SB)/4, $4.1665795894e-2
DATA consts<>+36(SB)/4, $1.6666665459e-1
DATA consts<>+40(SB)/4, $5.0000001201e-1
DATA consts<>+44(SB)/4, $1.0
DATA consts<>+48(SB)/4, $127              // bias of the exponent
DATA consts<>+52(SB)/4, $0x7fffffff       // mask without the sign
DATA consts<>+56(SB)/4, $0.625            // tanh uses a polynomial below this
DATA consts<>+60(SB)/4, $-5.70498872745e-3
DATA consts<>+64(SB)/4, $2.06390887954e-2
DATA consts<>+68(SB)/4, $-5.37397155531e-2
DATA consts<>+72(SB)/4, $1.33314422036e-1
DATA consts<>+76(SB)/4, $-3.33332819422e-1
DATA consts<>+80(SB)/4, $0xff800000       // minus infinity
GLOBL consts<>(SB), RODATA|NOPTR, $84

#define LOAD(at, y) VBROADCASTSS consts<>+at(SB), y

// MASK sets Y15 to the mask of the last CX of eight numbers.
#define MASK \
	LEAQ    tail<>+32(SB), AX \
	SHLQ    $2, CX            \
	SUBQ    CX, AX            \
	VMOVUPS (AX), Y15

// EXP replaces Y0 by its exponential and uses Y1 to Y4. NaN stays. n is the whole
// number nearest to x/ln 2. The result is 2^n times the exponential of the rest of x,
// which is a polynomial. 2^n is multiplied in two halves, so that neither half leaves
// the range of floats while the result is in it.
#define EXP \
	LOAD(0, Y1)                \
	VMAXPS       Y0, Y1, Y0    \
	LOAD(4, Y1)                \
	VMINPS       Y0, Y1, Y0    \
	LOAD(8, Y1)                \
	VMULPS       Y1, Y0, Y1    \
	VROUNDPS     $8, Y1, Y1    \
	LOAD(12, Y2)               \
	VFNMADD231PS Y2, Y1, Y0    \
	LOAD(16, Y2)               \
	VFNMADD231PS Y2, Y1, Y0    \
	LOAD(20, Y2)               \
	LOAD(24, Y3)               \
	VFMADD213PS  Y3, Y0, Y2    \
	LOAD(28, Y3)               \
	VFMADD213PS  Y3, Y0, Y2    \
	LOAD(32, Y3)               \
	VFMADD213PS  Y3, Y0, Y2    \
	LOAD(36, Y3)               \
	VFMADD213PS  Y3, Y0, Y2    \
	LOAD(40, Y3)               \
	VFMADD213PS  Y3, Y0, Y2    \
	VMULPS       Y0, Y0, Y3    \
	VFMADD213PS  Y0, Y3, Y2    \
	LOAD(44, Y3)               \
	VADDPS       Y3, Y2, Y0    \
	VCVTPS2DQ    Y1, Y1        \
	VPSRAD       $1, Y1, Y2    \
	VPSUBD       Y2, Y1, Y1    \
	LOAD(48, Y3)               \
	VPADDD       Y3, Y1, Y1    \
	VPADDD       Y3, Y2, Y2    \
	VPSLLD       $23, Y1, Y1   \
	VPSLLD       $23, Y2, Y2   \
	VMULPS       Y1, Y0, Y0    \
	VMULPS       Y2, Y0, Y0

// SIGMOID replaces Y0 by 1/(1+exp(-Y0)).
#define SIGMOID \
	VXORPS Y1, Y1, Y1  \
	VSUBPS Y0, Y1, Y0  \
	EXP                \
	LOAD(44, Y1)       \
	VADDPS Y1, Y0, Y0  \
	VDIVPS Y0, Y1, Y0

// TANH replaces Y0 by 1-2/(exp(2*Y0)+1), or by a polynomial near zero, where that
// formula would lose digits. It also uses Y5 to Y7.
#define TANH \
	VMULPS      Y0, Y0, Y6      \
	LOAD(60, Y5)                \
	LOAD(64, Y1)                \
	VFMADD213PS Y1, Y6, Y5      \
	LOAD(68, Y1)                \
	VFMADD213PS Y1, Y6, Y5      \
	LOAD(72, Y1)                \
	VFMADD213PS Y1, Y6, Y5      \
	LOAD(76, Y1)                \
	VFMADD213PS Y1, Y6, Y5      \
	VMULPS      Y6, Y5, Y5      \
	VFMADD213PS Y0, Y0, Y5      \
	LOAD(52, Y1)                \
	VANDPS      Y1, Y0, Y6      \
	LOAD(56, Y1)                \
	VCMPPS      $1, Y1, Y6, Y6  \
	VADDPS      Y0, Y0, Y0      \
	EXP                         \
	LOAD(44, Y1)                \
	VADDPS      Y1, Y0, Y0      \
	VADDPS      Y1, Y1, Y2      \
	VDIVPS      Y0, Y2, Y0      \
	VSUBPS      Y0, Y1, Y0      \
	VBLENDVPS   Y6, Y5, Y0, Y0

// RELU expects 0 in Y8.
#define RELU VMAXPS Y0, Y8, Y0

// EACH applies a macro to all numbers of x.
#define EACH(what) \
loop:                             \
	CMPQ       CX, $8             \
	JLT        rest               \
	VMOVUPS    (SI), Y0           \
	what                          \
	VMOVUPS    Y0, (SI)           \
	ADDQ       $32, SI            \
	SUBQ       $8, CX             \
	JMP        loop               \
rest:                             \
	TESTQ      CX, CX             \
	JZ         done               \
	MASK                          \
	VMASKMOVPS (SI), Y15, Y0      \
	what                          \
	VMASKMOVPS Y0, Y15, (SI)      \
done:                             \
	VZEROUPPER                    \
	RET

// func expAVX2(x *float32, n int)
TEXT ·expAVX2(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	EACH(EXP)

// func sigmoidAVX2(x *float32, n int)
TEXT ·sigmoidAVX2(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	EACH(SIGMOID)

// func tanhAVX2(x *float32, n int)
TEXT ·tanhAVX2(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	EACH(TANH)

// func reluAVX2(x *float32, n int)
TEXT ·reluAVX2(SB), NOSPLIT, $0-16
	MOVQ   x+0(FP), SI
	MOVQ   n+8(FP), CX
	VXORPS Y8, Y8, Y8
	EACH(RELU)

// PAIRS applies op to all pairs of numbers of two rows.
#define PAIRS(op) \
loop:                             \
	CMPQ       CX, $8             \
	JLT        rest               \
	VMOVUPS    (SI), Y0           \
	op         (DX), Y0, Y0       \
	VMOVUPS    Y0, (DI)           \
	ADDQ       $32, SI            \
	ADDQ       $32, DX            \
	ADDQ       $32, DI            \
	SUBQ       $8, CX             \
	JMP        loop               \
rest:                             \
	TESTQ      CX, CX             \
	JZ         done               \
	MASK                          \
	VMASKMOVPS (SI), Y15, Y0      \
	VMASKMOVPS (DX), Y15, Y1      \
	op         Y1, Y0, Y0         \
	VMASKMOVPS Y0, Y15, (DI)      \
done:                             \
	VZEROUPPER                    \
	RET

// func addAVX2(dst, a, b *float32, n int)
TEXT ·addAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	PAIRS(VADDPS)

// func subAVX2(dst, a, b *float32, n int)
TEXT ·subAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	PAIRS(VSUBPS)

// func mulAVX2(dst, a, b *float32, n int)
TEXT ·mulAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	PAIRS(VMULPS)

// func divAVX2(dst, a, b *float32, n int)
TEXT ·divAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ n+24(FP), CX
	PAIRS(VDIVPS)

// func softmaxAVX2(x *float32, n int)
//
// It finds the maximum in Y8, then writes the exponentials of the differences to it
// with their sum in Y9, and divides. Numbers after the end count as minus infinity,
// later as 0.
TEXT ·softmaxAVX2(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ CX, R9
	ANDQ $-8, R9
	SHLQ $2, R9       // bytes of whole vectors
	ANDQ $7, CX
	MOVQ CX, R10
	MASK
	LOAD(80, Y10)
	VMOVAPS Y10, Y8
	XORQ AX, AX

greatest:
	CMPQ   AX, R9
	JGE    greatestRest
	VMAXPS (SI)(AX*1), Y8, Y8
	ADDQ   $32, AX
	JMP    greatest

greatestRest:
	VMASKMOVPS (SI)(R9*1), Y15, Y0
	VBLENDVPS  Y15, Y0, Y10, Y0
	VMAXPS     Y0, Y8, Y8
	VEXTRACTF128 $1, Y8, X0
	VMAXPS     X0, X8, X8
	VPERMILPS  $0x4e, X8, X0
	VMAXPS     X0, X8, X8
	VPERMILPS  $0xb1, X8, X0
	VMAXPS     X0, X8, X8
	VBROADCASTSS X8, Y8
	VXORPS     Y9, Y9, Y9
	XORQ       R8, R8

exponentials:
	CMPQ    R8, R9
	JGE     exponentialsRest
	VMOVUPS (SI)(R8*1), Y0
	VSUBPS  Y8, Y0, Y0
	EXP
	VMOVUPS Y0, (SI)(R8*1)
	VADDPS  Y0, Y9, Y9
	ADDQ    $32, R8
	JMP     exponentials

exponentialsRest:
	VMASKMOVPS (SI)(R9*1), Y15, Y0
	VSUBPS     Y8, Y0, Y0
	EXP
	VANDPS     Y15, Y0, Y11
	VADDPS     Y11, Y9, Y9
	VEXTRACTF128 $1, Y9, X0
	VADDPS     X0, X9, X9
	VPERMILPS  $0x4e, X9, X0
	VADDPS     X0, X9, X9
	VPERMILPS  $0xb1, X9, X0
	VADDPS     X0, X9, X9
	VBROADCASTSS X9, Y9
	XORQ       R8, R8

division:
	CMPQ    R8, R9
	JGE     divisionRest
	VMOVUPS (SI)(R8*1), Y0
	VDIVPS  Y9, Y0, Y0
	VMOVUPS Y0, (SI)(R8*1)
	ADDQ    $32, R8
	JMP     division

divisionRest:
	TESTQ  R10, R10
	JZ     done
	VDIVPS Y9, Y11, Y11
	VMASKMOVPS Y11, Y15, (SI)(R9*1)

done:
	VZEROUPPER
	RET

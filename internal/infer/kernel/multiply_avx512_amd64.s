#include "go_asm.h"
#include "textflag.h"

// The same as for AVX2, see there, with whole panels: four vectors of 16 numbers,
// whose masks K1 to K4 leave out what is behind the panel's width.

#define BEGIN \
	MOVQ tile_k(DI), CX      \
	MOVQ tile_stride(DI), DX \
	MOVQ tile_b(DI), SI      \
	MOVQ tile_strip(DI), BX  \
	LEAQ (SI)(BX*2), R8      \
	ADDQ BX, R8

#define ROW(i, at) \
	MOVQ (tile_a+8*i)(DI), at \
	LEAQ (at)(CX*4), at

// MASKS makes as many ones as there are columns, and deals them out. The width is
// from 1 to 64; R9 is used for the counting since CX is taken.
#define MASKS \
	MOVQ  tile_width(DI), AX \
	MOVQ  CX, R9             \
	MOVQ  $64, CX            \
	SUBQ  AX, CX             \
	MOVQ  $-1, AX            \
	SHRQ  CX, AX             \
	MOVQ  R9, CX             \
	KMOVW AX, K1             \
	SHRQ  $16, AX            \
	KMOVW AX, K2             \
	SHRQ  $16, AX            \
	KMOVW AX, K3             \
	SHRQ  $16, AX            \
	KMOVW AX, K4

// START sets four sums to the bias, or to nought.
#define START(z0, z1, z2, z3, none) \
	VPXORQ z0, z0, z0        \
	VPXORQ z1, z1, z1        \
	VPXORQ z2, z2, z2        \
	VPXORQ z3, z3, z3        \
	MOVQ   tile_bias(DI), AX \
	TESTQ  AX, AX            \
	JZ     none              \
	VMOVUPS.Z (AX), K1, z0    \
	VMOVUPS.Z 64(AX), K2, z1  \
	VMOVUPS.Z 128(AX), K3, z2 \
	VMOVUPS.Z 192(AX), K4, z3

// LOAD takes a row of the panel, whose fourth strip is at last.
#define LOAD(at, last) \
	VMOVUPS.Z (at), K1, Z20       \
	VMOVUPS.Z (at)(BX*1), K2, Z21 \
	VMOVUPS.Z (at)(BX*2), K3, Z22 \
	VMOVUPS.Z (last), K4, Z23

// ADD adds to a row's four sums the panel's row in Z20 to Z23 times z.
#define ADD(z, z0, z1, z2, z3) \
	VFMADD231PS Z20, z, z0 \
	VFMADD231PS Z21, z, z1 \
	VFMADD231PS Z22, z, z2 \
	VFMADD231PS Z23, z, z3

// OUT lifts four sums to the floor in Z24, unless they are NaN, and stores them.
#define OUT(i, z0, z1, z2, z3) \
	MOVQ    (tile_c+8*i)(DI), AX \
	VMAXPS  z0, Z24, z0          \
	VMAXPS  z1, Z24, z1          \
	VMAXPS  z2, Z24, z2          \
	VMAXPS  z3, Z24, z3          \
	VMOVUPS z0, K1, (AX)         \
	VMOVUPS z1, K2, 64(AX)       \
	VMOVUPS z2, K3, 128(AX)      \
	VMOVUPS z3, K4, 192(AX)

// AHEAD is how far in front of its use a strip is asked for.
#define AHEAD 1024

#define FLOOR VBROADCASTSS tile_floor(DI), Z24

// func one64AVX512(t *tile)
TEXT ·one64AVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	BEGIN
	ROW(0, R10)
	MASKS
	START(Z0, Z1, Z2, Z3, biased)

biased:
	NEGQ CX
	JZ   done

loop:
	VBROADCASTSS (R10)(CX*4), Z16
	LOAD(SI, R8)
	ADD(Z16, Z0, Z1, Z2, Z3)
	ADDQ         DX, SI
	ADDQ         DX, R8
	INCQ         CX
	JNZ          loop

done:
	FLOOR
	OUT(0, Z0, Z1, Z2, Z3)
	VZEROUPPER
	RET

// func two64AVX512(t *tile)
TEXT ·two64AVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	BEGIN
	ROW(0, R10)
	ROW(1, R11)
	MASKS
	START(Z0, Z1, Z2, Z3, biased)

biased:
	VMOVAPS Z0, Z4
	VMOVAPS Z1, Z5
	VMOVAPS Z2, Z6
	VMOVAPS Z3, Z7
	NEGQ    CX
	JZ      done

loop:
	PREFETCHT0   AHEAD(SI)
	PREFETCHT0   AHEAD(SI)(BX*1)
	PREFETCHT0   AHEAD(SI)(BX*2)
	PREFETCHT0   AHEAD(R8)
	VBROADCASTSS (R10)(CX*4), Z16
	VBROADCASTSS (R11)(CX*4), Z17
	LOAD(SI, R8)
	ADD(Z16, Z0, Z1, Z2, Z3)
	ADD(Z17, Z4, Z5, Z6, Z7)
	ADDQ         DX, SI
	ADDQ         DX, R8
	INCQ         CX
	JNZ          loop

done:
	FLOOR
	OUT(0, Z0, Z1, Z2, Z3)
	OUT(1, Z4, Z5, Z6, Z7)
	VZEROUPPER
	RET

// func four64AVX512(t *tile)
TEXT ·four64AVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	BEGIN
	ROW(0, R10)
	ROW(1, R11)
	ROW(2, R12)
	ROW(3, R13)
	MASKS
	START(Z0, Z1, Z2, Z3, biased)

biased:
	VMOVAPS Z0, Z4
	VMOVAPS Z1, Z5
	VMOVAPS Z2, Z6
	VMOVAPS Z3, Z7
	VMOVAPS Z0, Z8
	VMOVAPS Z1, Z9
	VMOVAPS Z2, Z10
	VMOVAPS Z3, Z11
	VMOVAPS Z0, Z12
	VMOVAPS Z1, Z13
	VMOVAPS Z2, Z14
	VMOVAPS Z3, Z15
	NEGQ    CX
	JZ      done

loop:
	PREFETCHT0   AHEAD(SI)
	PREFETCHT0   AHEAD(SI)(BX*1)
	PREFETCHT0   AHEAD(SI)(BX*2)
	PREFETCHT0   AHEAD(R8)
	VBROADCASTSS (R10)(CX*4), Z16
	VBROADCASTSS (R11)(CX*4), Z17
	VBROADCASTSS (R12)(CX*4), Z18
	VBROADCASTSS (R13)(CX*4), Z19
	LOAD(SI, R8)
	ADD(Z16, Z0, Z1, Z2, Z3)
	ADD(Z17, Z4, Z5, Z6, Z7)
	ADD(Z18, Z8, Z9, Z10, Z11)
	ADD(Z19, Z12, Z13, Z14, Z15)
	ADDQ         DX, SI
	ADDQ         DX, R8
	INCQ         CX
	JNZ          loop

done:
	FLOOR
	OUT(0, Z0, Z1, Z2, Z3)
	OUT(1, Z4, Z5, Z6, Z7)
	OUT(2, Z8, Z9, Z10, Z11)
	OUT(3, Z12, Z13, Z14, Z15)
	VZEROUPPER
	RET

// func sparse64AVX512(t *tile)
TEXT ·sparse64AVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	BEGIN
	ROW(0, R10)
	MOVQ tile_index(DI), R11
	LEAQ (R11)(CX*4), R11
	MASKS
	START(Z0, Z1, Z2, Z3, biased)

biased:
	NEGQ CX
	JZ   done

loop:
	MOVL         (R11)(CX*4), AX
	IMULQ        DX, AX
	LEAQ         (R8)(AX*1), R9
	ADDQ         SI, AX
	VBROADCASTSS (R10)(CX*4), Z16
	LOAD(AX, R9)
	ADD(Z16, Z0, Z1, Z2, Z3)
	INCQ         CX
	JNZ          loop

done:
	FLOOR
	OUT(0, Z0, Z1, Z2, Z3)
	VZEROUPPER
	RET

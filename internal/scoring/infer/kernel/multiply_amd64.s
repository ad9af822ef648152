#include "go_asm.h"
#include "textflag.h"

// Products of up to four rows of input with a part of a panel. In all of them
//   DI is the tile, SI walks down the first strip by DX bytes a row, and R8 is
//   three strips further; BX is the bytes from a strip to the next,
//   R10 to R13 are the ends of the rows of input,
//   CX goes from minus their length up to 0.
// Each sum is taken in the order of the panel's rows, with fused additions.

// A vector of ones with zeros after it: the mask for w of 32 columns begins 32-w
// numbers after its start.
DATA window<>+0x00(SB)/8, $-1
DATA window<>+0x08(SB)/8, $-1
DATA window<>+0x10(SB)/8, $-1
DATA window<>+0x18(SB)/8, $-1
DATA window<>+0x20(SB)/8, $-1
DATA window<>+0x28(SB)/8, $-1
DATA window<>+0x30(SB)/8, $-1
DATA window<>+0x38(SB)/8, $-1
DATA window<>+0x40(SB)/8, $-1
DATA window<>+0x48(SB)/8, $-1
DATA window<>+0x50(SB)/8, $-1
DATA window<>+0x58(SB)/8, $-1
DATA window<>+0x60(SB)/8, $-1
DATA window<>+0x68(SB)/8, $-1
DATA window<>+0x70(SB)/8, $-1
DATA window<>+0x78(SB)/8, $-1
GLOBL window<>(SB), RODATA|NOPTR, $256

// BEGIN expects the tile in DI.
#define BEGIN \
	MOVQ tile_k(DI), CX      \
	MOVQ tile_stride(DI), DX \
	MOVQ tile_b(DI), SI      \
	MOVQ tile_strip(DI), BX  \
	LEAQ (SI)(BX*2), R8      \
	ADDQ BX, R8

// ROW sets at to the end of the i-th row of input.
#define ROW(i, at) \
	MOVQ (tile_a+8*i)(DI), at \
	LEAQ (at)(CX*4), at

// AHEAD is the distance in bytes at which a strip is prefetched, because the
// processor's own prefetcher stops at the end of each page.
#define AHEAD 1024

// MASKS sets AX to the beginning of the masks for the tile's width.
#define MASKS \
	LEAQ window<>+128(SB), AX \
	MOVQ tile_width(DI), R9   \
	SHLQ $2, R9               \
	SUBQ R9, AX

// FLOOR sets y to the lower limit of the sums.
#define FLOOR(y) \
	VBROADCASTSS tile_floor(DI), y

// OUT raises a sum to the floor, unless it is NaN, and stores it.
#define OUT(y, floor, at) \
	VMAXPS  y, floor, y \
	VMOVUPS y, at

#define OUTMASKED(y, floor, mask, at) \
	VMAXPS     y, floor, y \
	VMASKMOVPS y, mask, at

// START64 sets the sums of 64 columns to the bias, or to zero if there is none.
#define START64(biased) \
	VXORPS  Y0, Y0, Y0        \
	VXORPS  Y1, Y1, Y1        \
	VXORPS  Y2, Y2, Y2        \
	VXORPS  Y3, Y3, Y3        \
	VXORPS  Y4, Y4, Y4        \
	VXORPS  Y5, Y5, Y5        \
	VXORPS  Y6, Y6, Y6        \
	VXORPS  Y7, Y7, Y7        \
	MOVQ    tile_bias(DI), AX \
	TESTQ   AX, AX            \
	JZ      biased            \
	VMOVUPS (AX), Y0          \
	VMOVUPS 32(AX), Y1        \
	VMOVUPS 64(AX), Y2        \
	VMOVUPS 96(AX), Y3        \
	VMOVUPS 128(AX), Y4       \
	VMOVUPS 160(AX), Y5       \
	VMOVUPS 192(AX), Y6       \
	VMOVUPS 224(AX), Y7

// START32 does the same for up to 32 columns, with their masks in Y12 to Y15.
#define START32(biased) \
	MASKS                        \
	VMOVUPS    (AX), Y12         \
	VMOVUPS    32(AX), Y13       \
	VMOVUPS    64(AX), Y14       \
	VMOVUPS    96(AX), Y15       \
	VXORPS     Y0, Y0, Y0        \
	VXORPS     Y1, Y1, Y1        \
	VXORPS     Y2, Y2, Y2        \
	VXORPS     Y3, Y3, Y3        \
	MOVQ       tile_bias(DI), AX \
	TESTQ      AX, AX            \
	JZ         biased            \
	VMASKMOVPS (AX), Y12, Y0     \
	VMASKMOVPS 32(AX), Y13, Y1   \
	VMASKMOVPS 64(AX), Y14, Y2   \
	VMASKMOVPS 96(AX), Y15, Y3

// END64 stores the sums of 64 columns and returns.
#define END64 \
	FLOOR(Y8)            \
	MOVQ tile_c(DI), AX  \
	OUT(Y0, Y8, (AX))    \
	OUT(Y1, Y8, 32(AX))  \
	OUT(Y2, Y8, 64(AX))  \
	OUT(Y3, Y8, 96(AX))  \
	OUT(Y4, Y8, 128(AX)) \
	OUT(Y5, Y8, 160(AX)) \
	OUT(Y6, Y8, 192(AX)) \
	OUT(Y7, Y8, 224(AX)) \
	VZEROUPPER           \
	RET

// END32 stores the sums of up to 32 columns and returns.
#define END32 \
	FLOOR(Y8)                      \
	MOVQ tile_c(DI), AX            \
	OUTMASKED(Y0, Y8, Y12, (AX))   \
	OUTMASKED(Y1, Y8, Y13, 32(AX)) \
	OUTMASKED(Y2, Y8, Y14, 64(AX)) \
	OUTMASKED(Y3, Y8, Y15, 96(AX)) \
	VZEROUPPER                     \
	RET

// func one64AVX2(t *tile)
// A row and a whole panel.
TEXT ·one64AVX2(SB), NOSPLIT, $0-8
	MOVQ   t+0(FP), DI
	BEGIN
	ROW(0, R10)
	START64(biased)

biased:
	NEGQ CX
	JZ   done

loop:
	VBROADCASTSS (R10)(CX*4), Y8
	VFMADD231PS  (SI), Y8, Y0
	VFMADD231PS  32(SI), Y8, Y1
	VFMADD231PS  (SI)(BX*1), Y8, Y2
	VFMADD231PS  32(SI)(BX*1), Y8, Y3
	VFMADD231PS  (SI)(BX*2), Y8, Y4
	VFMADD231PS  32(SI)(BX*2), Y8, Y5
	VFMADD231PS  (R8), Y8, Y6
	VFMADD231PS  32(R8), Y8, Y7
	ADDQ         DX, SI
	ADDQ         DX, R8
	INCQ         CX
	JNZ          loop

done:
	END64

// func one32AVX2(t *tile)
// A row and up to 32 columns.
TEXT ·one32AVX2(SB), NOSPLIT, $0-8
	MOVQ    t+0(FP), DI
	BEGIN
	ROW(0, R10)
	START32(biased)

biased:
	NEGQ CX
	JZ   done

loop:
	VBROADCASTSS (R10)(CX*4), Y8
	VMASKMOVPS   (SI), Y12, Y4
	VMASKMOVPS   32(SI), Y13, Y5
	VMASKMOVPS   (SI)(BX*1), Y14, Y6
	VMASKMOVPS   32(SI)(BX*1), Y15, Y7
	VFMADD231PS  Y4, Y8, Y0
	VFMADD231PS  Y5, Y8, Y1
	VFMADD231PS  Y6, Y8, Y2
	VFMADD231PS  Y7, Y8, Y3
	ADDQ         DX, SI
	INCQ         CX
	JNZ          loop

done:
	END32

// func two32AVX2(t *tile)
// Two rows and up to 32 columns.
TEXT ·two32AVX2(SB), NOSPLIT, $0-8
	MOVQ    t+0(FP), DI
	BEGIN
	ROW(0, R10)
	ROW(1, R11)
	START32(biased)

biased:
	VMOVAPS Y0, Y4
	VMOVAPS Y1, Y5
	VMOVAPS Y2, Y6
	VMOVAPS Y3, Y7
	NEGQ    CX
	JZ      done

loop:
	PREFETCHT0   AHEAD(SI)
	PREFETCHT0   AHEAD(SI)(BX*1)
	VBROADCASTSS (R10)(CX*4), Y8
	VBROADCASTSS (R11)(CX*4), Y9
	VMASKMOVPS   (SI), Y12, Y10
	VMASKMOVPS   32(SI), Y13, Y11
	VFMADD231PS  Y10, Y8, Y0
	VFMADD231PS  Y10, Y9, Y4
	VMASKMOVPS   (SI)(BX*1), Y14, Y10
	VFMADD231PS  Y11, Y8, Y1
	VFMADD231PS  Y11, Y9, Y5
	VMASKMOVPS   32(SI)(BX*1), Y15, Y11
	VFMADD231PS  Y10, Y8, Y2
	VFMADD231PS  Y10, Y9, Y6
	VFMADD231PS  Y11, Y8, Y3
	VFMADD231PS  Y11, Y9, Y7
	ADDQ         DX, SI
	INCQ         CX
	JNZ          loop

done:
	FLOOR(Y8)
	MOVQ tile_c(DI), AX
	MOVQ (tile_c+8)(DI), BX
	CMPQ tile_width(DI), $32
	JNE  part
	OUT(Y0, Y8, (AX))
	OUT(Y1, Y8, 32(AX))
	OUT(Y2, Y8, 64(AX))
	OUT(Y3, Y8, 96(AX))
	OUT(Y4, Y8, (BX))
	OUT(Y5, Y8, 32(BX))
	OUT(Y6, Y8, 64(BX))
	OUT(Y7, Y8, 96(BX))
	VZEROUPPER
	RET

part:
	OUTMASKED(Y0, Y8, Y12, (AX))
	OUTMASKED(Y1, Y8, Y13, 32(AX))
	OUTMASKED(Y2, Y8, Y14, 64(AX))
	OUTMASKED(Y3, Y8, Y15, 96(AX))
	OUTMASKED(Y4, Y8, Y12, (BX))
	OUTMASKED(Y5, Y8, Y13, 32(BX))
	OUTMASKED(Y6, Y8, Y14, 64(BX))
	OUTMASKED(Y7, Y8, Y15, 96(BX))
	VZEROUPPER
	RET

// func four16AVX2(t *tile)
// Four rows and up to 16 columns.
TEXT ·four16AVX2(SB), NOSPLIT, $0-8
	MOVQ    t+0(FP), DI
	BEGIN
	ROW(0, R10)
	ROW(1, R11)
	ROW(2, R12)
	ROW(3, R13)
	MASKS
	VMOVUPS (AX), Y14
	VMOVUPS 32(AX), Y15
	VXORPS  Y0, Y0, Y0
	VXORPS  Y1, Y1, Y1
	MOVQ    tile_bias(DI), AX
	TESTQ   AX, AX
	JZ      biased

	VMASKMOVPS (AX), Y14, Y0
	VMASKMOVPS 32(AX), Y15, Y1

biased:
	VMOVAPS Y0, Y2
	VMOVAPS Y1, Y3
	VMOVAPS Y0, Y4
	VMOVAPS Y1, Y5
	VMOVAPS Y0, Y6
	VMOVAPS Y1, Y7
	NEGQ    CX
	JZ      done

loop:
	PREFETCHT0   AHEAD(SI)
	VMASKMOVPS   (SI), Y14, Y8
	VMASKMOVPS   32(SI), Y15, Y9
	VBROADCASTSS (R10)(CX*4), Y10
	VBROADCASTSS (R11)(CX*4), Y11
	VBROADCASTSS (R12)(CX*4), Y12
	VBROADCASTSS (R13)(CX*4), Y13
	VFMADD231PS  Y8, Y10, Y0
	VFMADD231PS  Y9, Y10, Y1
	VFMADD231PS  Y8, Y11, Y2
	VFMADD231PS  Y9, Y11, Y3
	VFMADD231PS  Y8, Y12, Y4
	VFMADD231PS  Y9, Y12, Y5
	VFMADD231PS  Y8, Y13, Y6
	VFMADD231PS  Y9, Y13, Y7
	ADDQ         DX, SI
	INCQ         CX
	JNZ          loop

done:
	FLOOR(Y8)
	MOVQ tile_c(DI), AX
	MOVQ (tile_c+8)(DI), BX
	MOVQ (tile_c+16)(DI), R8
	MOVQ (tile_c+24)(DI), R9
	CMPQ tile_width(DI), $16
	JNE  part
	OUT(Y0, Y8, (AX))
	OUT(Y1, Y8, 32(AX))
	OUT(Y2, Y8, (BX))
	OUT(Y3, Y8, 32(BX))
	OUT(Y4, Y8, (R8))
	OUT(Y5, Y8, 32(R8))
	OUT(Y6, Y8, (R9))
	OUT(Y7, Y8, 32(R9))
	VZEROUPPER
	RET

part:
	OUTMASKED(Y0, Y8, Y14, (AX))
	OUTMASKED(Y1, Y8, Y15, 32(AX))
	OUTMASKED(Y2, Y8, Y14, (BX))
	OUTMASKED(Y3, Y8, Y15, 32(BX))
	OUTMASKED(Y4, Y8, Y14, (R8))
	OUTMASKED(Y5, Y8, Y15, 32(R8))
	OUTMASKED(Y6, Y8, Y14, (R9))
	OUTMASKED(Y7, Y8, Y15, 32(R9))
	VZEROUPPER
	RET

// func sparse64AVX2(t *tile)
// The rows of a whole panel that R11 names, times the values in R10.
TEXT ·sparse64AVX2(SB), NOSPLIT, $0-8
	MOVQ   t+0(FP), DI
	BEGIN
	ROW(0, R10)
	MOVQ   tile_index(DI), R11
	LEAQ   (R11)(CX*4), R11
	START64(biased)

biased:
	NEGQ CX
	JZ   done

loop:
	MOVL         (R11)(CX*4), AX
	IMULQ        DX, AX
	VBROADCASTSS (R10)(CX*4), Y8
	LEAQ         (R8)(AX*1), R9
	ADDQ         SI, AX
	VFMADD231PS  (AX), Y8, Y0
	VFMADD231PS  32(AX), Y8, Y1
	VFMADD231PS  (AX)(BX*1), Y8, Y2
	VFMADD231PS  32(AX)(BX*1), Y8, Y3
	VFMADD231PS  (AX)(BX*2), Y8, Y4
	VFMADD231PS  32(AX)(BX*2), Y8, Y5
	VFMADD231PS  (R9), Y8, Y6
	VFMADD231PS  32(R9), Y8, Y7
	INCQ         CX
	JNZ          loop

done:
	END64

// func sparse32AVX2(t *tile)
// The same with up to 32 columns.
TEXT ·sparse32AVX2(SB), NOSPLIT, $0-8
	MOVQ    t+0(FP), DI
	BEGIN
	ROW(0, R10)
	MOVQ    tile_index(DI), R11
	LEAQ    (R11)(CX*4), R11
	START32(biased)

biased:
	NEGQ CX
	JZ   done

loop:
	MOVL         (R11)(CX*4), AX
	IMULQ        DX, AX
	VBROADCASTSS (R10)(CX*4), Y8
	ADDQ         SI, AX
	VMASKMOVPS   (AX), Y12, Y4
	VMASKMOVPS   32(AX), Y13, Y5
	VMASKMOVPS   (AX)(BX*1), Y14, Y6
	VMASKMOVPS   32(AX)(BX*1), Y15, Y7
	VFMADD231PS  Y4, Y8, Y0
	VFMADD231PS  Y5, Y8, Y1
	VFMADD231PS  Y6, Y8, Y2
	VFMADD231PS  Y7, Y8, Y3
	INCQ         CX
	JNZ          loop

done:
	END32

package kernel

import "golang.org/x/sys/cpu"

func detect() variant {
	x := cpu.X86
	if !x.HasAVX2 || !x.HasFMA {
		return scalar
	}
	if !x.HasAVX512F || !x.HasAVX512VL || !x.HasAVX512DQ || !x.HasAVX512BW {
		return avx2
	}
	return avx512
}

package web

// ballastBytes lets so much garbage come together before it is collected.
const ballastBytes = 32 << 20

// newBallast is a block that nobody reads or writes. Of what is alive in a
// gateway there is little, and net/http leaves kilobytes behind for each
// request, so that the collector would run some fifty times a second and take a
// tenth of the CPU. It runs when the heap has doubled, and the block counts as
// heap. It takes address space and no memory, because its pages are never
// touched; what it costs is the garbage that waits, bounded by its size, which
// a percentage of a heap that has grown would not be.
func newBallast() []byte { return make([]byte, ballastBytes) }

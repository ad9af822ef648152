//go:build real

package main

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/chromedp/chromedp"
)

// maxShot is the greatest size of a screenshot in bytes, because it is stored in the repository.
const maxShot = 60_000

// shot writes a screenshot of the window into the folder of TIDEMILL_SCREENSHOTS. Without one it only
// checks its size.
func (p *page) shot(name string) {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	raw, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	p.must(err)
	whole, err := png.Decode(bytes.NewReader(raw))
	p.must(err)
	var small bytes.Buffer
	for _, mask := range []uint8{0xf0, 0xe0, 0xc0} {
		small.Reset()
		p.must((&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduced(whole, mask)))
		if small.Len() <= maxShot {
			break
		}
	}
	if small.Len() > maxShot {
		p.Errorf("the screenshot %s has %d bytes, and may have %d", name, small.Len(), maxShot)
	}
	if dir := os.Getenv("TIDEMILL_SCREENSHOTS"); dir != "" {
		p.must(os.MkdirAll(dir, 0o755))
		p.must(os.WriteFile(filepath.Join(dir, name+".png"), small.Bytes(), 0o644))
	}
}

// reduced returns the picture with at most 256 colours: the most frequent ones, and of those that are equal under a mask the
// most frequent. So the colours of areas and of small things stay.
func reduced(of image.Image, mask uint8) *image.Paletted {
	b := of.Bounds()
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA {
		r, g, b, _ := of.At(x, y).RGBA()
		return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 255}
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	palette := paletteOf(count, mask)
	index := map[color.RGBA]uint8{}
	out := image.NewPaletted(b, palette)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := at(x, y)
			i, ok := index[c]
			if !ok {
				i = uint8(palette.Index(c))
				index[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	return out
}

func paletteOf(count map[color.RGBA]int, mask uint8) (all color.Palette) {
	byCount := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	const areas = 24 // the colours of areas differ by less than a mask
	taken := map[color.RGBA]bool{}
	for i, c := range byCount {
		cell := color.RGBA{c.R & mask, c.G & mask, c.B & mask, 255}
		if (i < areas || !taken[cell]) && len(all) < 256 {
			taken[cell] = true
			all = append(all, c)
		}
	}
	return all
}

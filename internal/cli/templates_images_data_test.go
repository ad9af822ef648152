package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
)

// imageSize is the width and the height of the images.
const imageSize = 12

// shapes are the labels, each with the distance of a point from its lines.
var shapes = []struct {
	label    string
	distance func(x, y, size float64) float64
}{
	{"circle", func(x, y, size float64) float64 { return math.Abs(math.Hypot(x, y) - size) }},
	{"cross", func(x, y, size float64) float64 { return min(math.Abs(x), math.Abs(y)) + max(math.Hypot(x, y)-size, 0) }},
	{"square", func(x, y, size float64) float64 { return math.Abs(max(math.Abs(x), math.Abs(y)) - size) }},
}

// addImages adds the files of the template images.
func addImages(all map[string][]byte) {
	var events bytes.Buffer
	for i, camera := range []struct {
		name                string
		background, drawing float64
	}{{"bright", 0.9, 0.2}, {"dark", 0.1, 0.6}} {
		r := rand.New(rand.NewPCG(uint64(i), 41))
		for _, s := range shapes {
			for j := range 31 {
				picture := draw(r, s.distance, camera.background, camera.drawing)
				if j < 30 {
					all[fmt.Sprintf("images/data/%s/%s/%02d.png", camera.name, s.label, j+1)] = asPNG(picture)
					continue
				}
				rows, _ := json.Marshal(asRows(picture)) // numbers are always JSON
				fmt.Fprintf(&events, `{"specversion": "1.0", "id": "photo-%s-%s", "source": "/factory", "type": "photo", "subject": "%s", "datacontenttype": "application/json", "data": {"image": %s}}`+"\n",
					camera.name, s.label, camera.name, rows)
			}
		}
	}
	all["images/events.ndjson"] = events.Bytes()
}

// draw draws a shape with noise.
func draw(r *rand.Rand, distance func(x, y, size float64) float64, background, drawing float64) *image.Gray {
	picture := image.NewGray(image.Rect(0, 0, imageSize, imageSize))
	x0, y0, size := 5.5+r.NormFloat64()*0.5, 5.5+r.NormFloat64()*0.5, 3.3+r.Float64()
	for i := range picture.Pix {
		d := distance(float64(i%imageSize)-x0, float64(i/imageSize)-y0, size)
		ink := math.Exp(-d * d)
		grey := background + (drawing-background)*ink + 0.07*r.NormFloat64()
		picture.Pix[i] = uint8(math.Round(255 * min(max(grey, 0), 1)))
	}
	return picture
}

// asPNG does not compress, because other versions of Go would compress to other bytes.
func asPNG(picture *image.Gray) []byte {
	var b bytes.Buffer
	_ = (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&b, picture) // a buffer takes all
	return b.Bytes()
}

func asRows(picture *image.Gray) (rows [imageSize][imageSize]float64) {
	for i, grey := range picture.Pix {
		rows[i/imageSize][i%imageSize] = math.Round(float64(grey)/255*1000) / 1000
	}
	return rows
}

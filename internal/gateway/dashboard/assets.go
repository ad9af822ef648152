package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed assets
var assetSource embed.FS

// assetFiles are the scripts and styles. One hash over all of them is part of their paths, because
// the modules import each other by relative paths.
type assetFiles struct {
	hash  string
	files map[string]asset
}

type asset struct {
	media       string
	plain, gzip []byte
}

// packAssets reads the embedded files and compresses them, once in a process.
var packAssets = sync.OnceValue(func() *assetFiles {
	entries, _ := assetSource.ReadDir("assets") // embedded: cannot fail
	sum, a := sha256.New(), &assetFiles{files: map[string]asset{}}
	for _, e := range entries {
		data, _ := assetSource.ReadFile(path.Join("assets", e.Name()))
		sum.Write([]byte(e.Name() + "\n"))
		sum.Write(data)
		a.files[e.Name()] = asset{media: mediaOf(e.Name()), plain: data, gzip: zip(data, gzip.BestCompression)}
	}
	a.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return a
})

func mediaOf(name string) string {
	if strings.HasSuffix(name, ".js") {
		return "text/javascript; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func zip(data []byte, level int) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, level) // the level is valid
	_, _ = z.Write(data)                   // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

// url returns the path of an asset.
func (a *assetFiles) url(name string) string { return "/ui/assets/" + a.hash + "/" + name }

// ServeHTTP sends a file. Only the present hash may be cached for ever: during an upgrade a page of
// another version may ask this gateway.
func (a *assetFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.media)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("hash") == a.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	body := f.plain
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	_, _ = w.Write(body) // fails only if the caller has disconnected
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.TrimSpace(weight) != "q=0" {
			return true
		}
	}
	return false
}

package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is a part of an image that is transferred and stored separately. Files that change often
// belong in the last layer.
type Layer struct {
	// Note describes the layer in the image's history.
	Note  string
	Files []File
}

// Image is an image before it is written.
type Image struct {
	// Name is the whole name, with its tag: dev.local/tidemill:v1.
	Name string
	// Architecture is Go's name for the architecture. The operating system is always Linux.
	Architecture string
	// Created is the time of the image's contents, not of the writing.
	Created time.Time
	Config  v1.Config
	Layers  []Layer
	// Plain leaves layers uncompressed, which is faster for an image that stays on the machine.
	Plain bool
}

// Write writes the image and returns its digest in a registry.
func Write(w io.Writer, im Image) (digest string, err error) {
	digest, err = im.write(w)
	if err != nil {
		return "", fmt.Errorf("write the image %s: %w", im.Name, err)
	}
	return digest, nil
}

func (im Image) write(w io.Writer) (string, error) {
	built, err := im.build()
	if err != nil {
		return "", err
	}
	files, err := contentTables(built, im.Name)
	if err != nil {
		return "", err
	}
	layout, err := json.Marshal(map[string]string{"imageLayoutVersion": "1.0.0"})
	if err != nil {
		return "", err
	}
	files = append(files, Folder("blobs/sha256"), Regular("oci-layout", layout))
	if files, err = appendBlobs(files, built); err != nil {
		return "", err
	}
	digest, err := built.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), WriteTar(w, files)
}

// build makes go-containerregistry's image of the layers.
func (im Image) build() (v1.Image, error) {
	created := v1.Time{Time: im.Created.UTC()}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: im.Architecture, OS: "linux", Created: created, Config: im.Config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, l := range im.Layers {
		packed, err := l.pack(im.Plain)
		if err != nil {
			return nil, fmt.Errorf("the layer %q: %w", l.Note, err)
		}
		built, err = mutate.Append(built, mutate.Addendum{Layer: packed, History: v1.History{Created: created, CreatedBy: l.Note}})
		if err != nil {
			return nil, fmt.Errorf("the layer %q: %w", l.Note, err)
		}
	}
	return built, nil
}

// pack makes the layer in its transferred form.
func (l Layer) pack(plain bool) (v1.Layer, error) {
	var raw bytes.Buffer
	if err := WriteTar(&raw, l.Files); err != nil {
		return nil, err
	}
	if plain {
		return static.NewLayer(raw.Bytes(), types.OCIUncompressedLayer), nil
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// contentTables returns the two tables of contents: OCI's, and that of docker load.
func contentTables(built v1.Image, name string) ([]File, error) {
	base, tag, err := cutName(name)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	index, err := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: built, Descriptor: v1.Descriptor{
		Platform:    &v1.Platform{Architecture: config.Architecture, OS: config.OS},
		Annotations: map[string]string{"io.containerd.image.name": base + ":" + tag, "org.opencontainers.image.ref.name": tag},
	}}).RawManifest()
	if err != nil {
		return nil, err
	}
	m, err := built.Manifest()
	if err != nil {
		return nil, err
	}
	docker := tarball.Descriptor{Config: blobPath(m.Config.Digest), RepoTags: []string{name}}
	for _, l := range m.Layers {
		docker.Layers = append(docker.Layers, blobPath(l.Digest))
	}
	data, err := json.Marshal(tarball.Manifest{docker})
	if err != nil {
		return nil, err
	}
	return []File{Regular("index.json", index), Regular("manifest.json", data)}, nil
}

// appendBlobs adds the manifest, the config and the layers. Two equal layers become one blob.
func appendBlobs(files []File, built v1.Image) ([]File, error) {
	m, err := built.Manifest()
	if err != nil {
		return nil, err
	}
	digest, err := built.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := built.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := built.RawConfigFile()
	if err != nil {
		return nil, err
	}
	files = append(files, Regular(blobPath(digest), manifest), Regular(blobPath(m.Config.Digest), config))
	layers, err := built.Layers()
	if err != nil {
		return nil, err
	}
	written := map[v1.Hash]bool{}
	for i, l := range layers {
		digest := m.Layers[i].Digest
		if written[digest] {
			continue
		}
		written[digest] = true
		packed, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(packed)
		if err != nil {
			return nil, err
		}
		files = append(files, Regular(blobPath(digest), data))
	}
	return files, nil
}

// cutName requires a tag, because an importer adds a tag of its own choice to a name without one.
func cutName(name string) (base, tag string, err error) {
	at := strings.LastIndexByte(name, ':')
	if at <= 0 || at == len(name)-1 || strings.ContainsAny(name[at:], "/@") {
		return "", "", fmt.Errorf("%q is no image's name with a tag, such as dev.local/tidemill:v1", name)
	}
	return name[:at], name[at+1:], nil
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// WriteTar writes files in their order.
func WriteTar(w io.Writer, files []File) error {
	files, err := sortFiles(files)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, f := range files {
		h, err := f.header()
		if err != nil {
			return err
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
		if h.Size == 0 {
			continue
		}
		if _, err := out.Write(f.Data); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return out.Close()
}

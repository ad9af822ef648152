package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Content is an image that was read and whose digests are all right.
type Content struct {
	Name         string
	Digest       string
	Architecture string
	Created      time.Time
	Config       v1.Config
	Layers       []Packed
}

// Packed is a layer as it is in the tar file.
type Packed struct {
	Note   string
	Digest string
	DiffID string
	// Size is the size of the transferred layer in bytes.
	Size int64
	// Tar is the unpacked layer.
	Tar []byte
}

// Read reads an image that Write wrote. It checks every digest and size, and that both tables of
// contents describe this image.
func Read(r io.Reader) (Content, error) {
	files, err := readTar(r)
	if err != nil {
		return Content{}, fmt.Errorf("read an image: %w", err)
	}
	c, err := files.content()
	if err != nil {
		return Content{}, fmt.Errorf("read an image: %w", err)
	}
	return c, nil
}

// tarContents are the regular files of the tar file, by their paths.
type tarContents map[string][]byte

func readTar(r io.Reader) (tarContents, error) {
	files := tarContents{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(in); err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func (files tarContents) content() (c Content, err error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(files["index.json"]))
	if err != nil {
		return c, fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return c, fmt.Errorf("index.json has %d images, not one", len(index.Manifests))
	}
	top := index.Manifests[0]
	image, err := partial.CompressedToImage(storedImage{files, top})
	if err != nil {
		return c, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return c, err
	}
	c = Content{Name: top.Annotations["io.containerd.image.name"], Digest: top.Digest.String(), Architecture: config.Architecture, Created: config.Created.Time, Config: config.Config}
	if err := files.sameTables(image, c.Name); err != nil {
		return c, err
	}
	c.Layers, err = unpacked(image)
	return c, err
}

// sameTables checks that both tables of contents are those of the image.
func (files tarContents) sameTables(image v1.Image, name string) error {
	want, err := contentTables(image, name)
	if err != nil {
		return err
	}
	for _, table := range want {
		if said := files[table.Path]; !bytes.Equal(said, table.Data) {
			return fmt.Errorf("%s says %s where the image means %s", table.Path, said, table.Data)
		}
	}
	return nil
}

func unpacked(image v1.Image) ([]Packed, error) {
	all, err := image.Layers()
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	if len(all) != len(config.History) || len(all) != len(config.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the manifest has %d layers, the config %d, its history %d", len(all), len(config.RootFS.DiffIDs), len(config.History))
	}
	packed := make([]Packed, len(all))
	for i, l := range all {
		digest, digestErr := l.Digest()
		size, sizeErr := l.Size()
		if err := errors.Join(digestErr, sizeErr); err != nil {
			return nil, err
		}
		in, err := l.Uncompressed()
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("unpack the layer %s: %w", digest, err)
		}
		diffID := config.RootFS.DiffIDs[i]
		if got, _, err := v1.SHA256(bytes.NewReader(raw)); err != nil || got != diffID {
			return nil, errors.Join(fmt.Errorf("the layer %s holds %s, not %s as the config says", digest, got, diffID), err)
		}
		packed[i] = Packed{Note: config.History[i].CreatedBy, Digest: digest.String(), DiffID: diffID.String(), Size: size, Tar: raw}
	}
	return packed, nil
}

// storedImage is an image in the tar file, with the methods that go-containerregistry needs.
type storedImage struct {
	files tarContents
	top   v1.Descriptor
}

// MediaType returns the type of every image that Write writes.
func (s storedImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest returns the manifest.
func (s storedImage) RawManifest() ([]byte, error) { return s.files.blob(s.top) }

// RawConfigFile returns the config that the manifest names.
func (s storedImage) RawConfigFile() ([]byte, error) {
	m, err := s.manifest()
	if err != nil {
		return nil, err
	}
	return s.files.blob(m.Config)
}

// LayerByDigest returns a layer of the manifest.
func (s storedImage) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	m, err := s.manifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Layers {
		if d.Digest == digest {
			return storedLayer{s.files, d}, nil
		}
	}
	return nil, fmt.Errorf("the manifest has no layer %s", digest)
}

func (s storedImage) manifest() (*v1.Manifest, error) {
	data, err := s.RawManifest()
	if err != nil {
		return nil, err
	}
	return v1.ParseManifest(bytes.NewReader(data))
}

// blob returns a blob whose digest and size are right.
func (files tarContents) blob(d v1.Descriptor) ([]byte, error) {
	data, there := files[blobPath(d.Digest)]
	if !there {
		return nil, fmt.Errorf("the blob %s is missing", d.Digest)
	}
	if got, size, err := v1.SHA256(bytes.NewReader(data)); err != nil || got != d.Digest || size != d.Size {
		return nil, errors.Join(fmt.Errorf("the blob %s of %d bytes is %s of %d", d.Digest, d.Size, got, size), err)
	}
	return data, nil
}

// storedLayer is a layer in the tar file.
type storedLayer struct {
	files tarContents
	is    v1.Descriptor
}

func (l storedLayer) Digest() (v1.Hash, error) { return l.is.Digest, nil }

func (l storedLayer) Size() (int64, error) { return l.is.Size, nil }

func (l storedLayer) MediaType() (types.MediaType, error) { return l.is.MediaType, nil }

func (l storedLayer) Compressed() (io.ReadCloser, error) {
	data, err := l.files.blob(l.is)
	return io.NopCloser(bytes.NewReader(data)), err
}

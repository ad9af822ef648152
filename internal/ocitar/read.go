package ocitar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Content is an image that was read, all of whose digests are right.
type Content struct {
	Name         string
	Digest       string
	Architecture string
	Created      time.Time
	Config       Config
	Layers       []Packed
}

// Packed is a layer as it stands in the file.
type Packed struct {
	Note   string
	Digest string
	DiffID string
	// Size is how many bytes are transferred.
	Size int64
	// Tar is the layer when unpacked.
	Tar []byte
}

// Read reads an image that Write wrote, and checks every digest and size in it,
// and that both of its tables of contents mean the same.
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

type contents map[string][]byte

func readTar(r io.Reader) (contents, error) {
	files := contents{}
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

func (files contents) content() (c Content, err error) {
	var (
		index, top manifest
		config     imageConfig
		docker     []dockerEntry
	)
	if err := files.decode("index.json", &index); err != nil {
		return c, err
	}
	if len(index.Manifests) != 1 {
		return c, fmt.Errorf("index.json has %d images, not one", len(index.Manifests))
	}
	first := index.Manifests[0]
	if err := files.blob(first, &top); err != nil {
		return c, err
	}
	if top.Config == nil {
		return c, fmt.Errorf("the manifest %s has no config", first.Digest)
	}
	if err := files.blob(*top.Config, &config); err != nil {
		return c, err
	}
	if err := files.decode("manifest.json", &docker); err != nil {
		return c, err
	}
	c = Content{Name: first.Annotations["io.containerd.image.name"], Digest: first.Digest, Architecture: config.Architecture, Created: config.Created, Config: config.Config}
	if err := sameForDocker(docker, top, c.Name); err != nil {
		return c, err
	}
	c.Layers, err = files.layers(top.Layers, config)
	return c, err
}

func sameForDocker(docker []dockerEntry, top manifest, name string) error {
	said, err := json.Marshal(docker)
	if err != nil {
		return err
	}
	want, err := json.Marshal([]dockerEntry{top.docker(name)})
	if err != nil {
		return err
	}
	if !bytes.Equal(said, want) {
		return fmt.Errorf("manifest.json says %s where index.json means %s", said, want)
	}
	return nil
}

func (files contents) layers(all []descriptor, config imageConfig) ([]Packed, error) {
	if len(all) != len(config.RootFS.DiffIDs) || len(all) != len(config.History) {
		return nil, fmt.Errorf("the manifest has %d layers, the config %d, its history %d", len(all), len(config.RootFS.DiffIDs), len(config.History))
	}
	layers := make([]Packed, len(all))
	for i, d := range all {
		data, err := files.checked(d)
		if err != nil {
			return nil, err
		}
		raw, err := unpack(data, d.MediaType)
		if err != nil {
			return nil, fmt.Errorf("the layer %s: %w", d.Digest, err)
		}
		if got := digestOf(raw); got != config.RootFS.DiffIDs[i] {
			return nil, fmt.Errorf("the layer %s holds %s, not %s as the config says", d.Digest, got, config.RootFS.DiffIDs[i])
		}
		layers[i] = Packed{Note: config.History[i].CreatedBy, Digest: d.Digest, DiffID: config.RootFS.DiffIDs[i], Size: d.Size, Tar: raw}
	}
	return layers, nil
}

func unpack(data []byte, mediaType string) ([]byte, error) {
	switch mediaType {
	case typeLayer:
		return data, nil
	case typeLayerGzip:
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	}
	return nil, fmt.Errorf("a media type that is not ours: %s", mediaType)
}

func (files contents) blob(d descriptor, into any) error {
	if _, err := files.checked(d); err != nil {
		return err
	}
	return files.decode(blobPath(d.Digest), into)
}

func (files contents) checked(d descriptor) ([]byte, error) {
	data, there := files[blobPath(d.Digest)]
	if !there {
		return nil, fmt.Errorf("the blob %s is not there", d.Digest)
	}
	if got := digestOf(data); got != d.Digest || int64(len(data)) != d.Size {
		return nil, fmt.Errorf("the blob %s of %d bytes is %s of %d", d.Digest, d.Size, got, len(data))
	}
	return data, nil
}

func (files contents) decode(name string, into any) error {
	data, there := files[name]
	if !there {
		return fmt.Errorf("%s is not there", name)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

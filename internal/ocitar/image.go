package ocitar

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Layer is a part of an image that is transferred and kept as one. What changes
// often belongs into the last one.
type Layer struct {
	// Note says in the image's history what this is.
	Note  string
	Files []File
}

// Image is what is to be written.
type Image struct {
	// Name is the whole name, with its tag: dev.local/tidemill:v1.
	Name string
	// Architecture is Go's word for it. The system is always Linux.
	Architecture string
	// Created is when what is in the image was made, not when it was written.
	Created time.Time
	Config  Config
	Layers  []Layer
	// Plain leaves layers uncompressed, which is quicker where the image does
	// not leave the machine.
	Plain bool
}

// Config is how the image is run.
type Config struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// Write writes the image, and says under which digest a registry would know it.
func Write(w io.Writer, im Image) (digest string, err error) {
	blobs, top, docker, err := im.blobs()
	if err != nil {
		return "", fmt.Errorf("write the image %s: %w", im.Name, err)
	}
	files := []File{Folder("blobs/sha256")}
	for digest, data := range blobs {
		files = append(files, Regular(blobPath(digest), data))
	}
	index := manifest{Schema: 2, MediaType: typeIndex, Manifests: []descriptor{top}}
	for _, f := range []struct {
		name  string
		value any
	}{{"oci-layout", layout{"1.0.0"}}, {"index.json", index}, {"manifest.json", docker}} {
		data, err := json.Marshal(f.value)
		if err != nil {
			return "", fmt.Errorf("write the image %s: %w", im.Name, err)
		}
		files = append(files, Regular(f.name, data))
	}
	if err := writeTar(w, files); err != nil {
		return "", fmt.Errorf("write the image %s: %w", im.Name, err)
	}
	return top.Digest, nil
}

// blobs are the layers, the config and the manifest, by their digests.
func (im Image) blobs() (blobs map[string][]byte, top descriptor, docker []dockerEntry, err error) {
	base, tag, err := cutName(im.Name)
	if err != nil {
		return nil, top, nil, err
	}
	blobs = map[string][]byte{}
	add := func(mediaType string, data []byte) descriptor {
		d := descriptor{MediaType: mediaType, Digest: digestOf(data), Size: int64(len(data))}
		blobs[d.Digest] = data
		return d
	}
	cfg := imageConfig{Architecture: im.Architecture, OS: "linux", Created: im.Created.UTC(), Config: im.Config}
	cfg.RootFS.Type = "layers"
	m := manifest{Schema: 2, MediaType: typeManifest}
	for _, l := range im.Layers {
		packed, mediaType, diffID, err := l.pack(im.Plain)
		if err != nil {
			return nil, top, nil, fmt.Errorf("the layer %q: %w", l.Note, err)
		}
		m.Layers = append(m.Layers, add(mediaType, packed))
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, diffID)
		cfg.History = append(cfg.History, history{Created: im.Created.UTC(), CreatedBy: l.Note})
	}
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, top, nil, err
	}
	config := add(typeConfig, data)
	m.Config = &config
	if data, err = json.Marshal(m); err != nil {
		return nil, top, nil, err
	}
	top = add(typeManifest, data)
	top.Platform = &platform{Architecture: im.Architecture, OS: "linux"}
	top.Annotations = map[string]string{"io.containerd.image.name": base + ":" + tag, "org.opencontainers.image.ref.name": tag}
	return blobs, top, []dockerEntry{m.docker(im.Name)}, nil
}

// cutName wants a name with a tag, since what is without one would be given one
// by whoever imports it, and not by each the same.
func cutName(name string) (base, tag string, err error) {
	at := strings.LastIndexByte(name, ':')
	if at <= 0 || at == len(name)-1 || strings.ContainsAny(name[at:], "/@") {
		return "", "", fmt.Errorf("%q is no image's name with a tag, such as dev.local/tidemill:v1", name)
	}
	return name[:at], name[at+1:], nil
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func writeTar(w io.Writer, files []File) error {
	files, err := arrange(files)
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

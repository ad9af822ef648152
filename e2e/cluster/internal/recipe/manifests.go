package recipe

import (
	"bytes"
	"context"
	_ "embed" // needed for our manifests
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// The files of Knative that are applied unchanged, except for the images' names. Types come before
// their objects.
var (
	types = []source{
		{"knative.dev/serving", "config/core/300-resources/*.yaml"},
		{"knative.dev/networking", "config/certificate.yaml"},
		{"knative.dev/networking", "config/domain-claim.yaml"},
		{"knative.dev/networking", "config/ingress.yaml"},
		{"knative.dev/networking", "config/serverlessservice.yaml"},
		{"knative.dev/caching", "config/image.yaml"},
	}
	objects = []source{
		{"knative.dev/serving", "config/core/100-namespace.yaml"},
		{"knative.dev/serving", "config/core/200-serviceaccount.yaml"},
		{"knative.dev/serving", "config/core/200-roles/*.yaml"},
		{"knative.dev/serving", "config/core/configmaps/*.yaml"},
		{"knative.dev/serving", "config/core/300-knativecertificate.yaml"},
		{"knative.dev/serving", "config/core/999-cache.yaml"},
		{"knative.dev/serving", "config/core/deployments/activator.yaml"},
		{"knative.dev/serving", "config/core/deployments/autoscaler.yaml"},
		{"knative.dev/serving", "config/core/deployments/controller.yaml"},
		{"knative.dev/serving", "config/core/deployments/webhook.yaml"},
		{"knative.dev/serving", "config/core/webhooks/*.yaml"},
	}
)

// stages are kwok's simulation: healthy nodes, and pods that run, and that succeed if they belong
// to a Job.
var stages = []source{
	{"sigs.k8s.io/kwok", "kustomize/stage/node/fast/node*.yaml"},
	{"sigs.k8s.io/kwok", "kustomize/stage/node/heartbeat-with-lease/node*.yaml"},
	{"sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod*.yaml"},
}

// source is a set of files in a module.
type source struct{ module, files string }

// replaced are configurations that our own files replace.
var replaced = [...]string{"autoscaler.yaml", "domain.yaml"}

// Our own manifests. Those of every cluster need no Knative type.
var (
	//go:embed manifests/base.yaml
	ownBase []byte
	//go:embed manifests/knative.yaml
	ownKnative []byte
	//go:embed manifests/ingress.yaml
	ownIngress []byte
)

// manifests writes the manifests of a new cluster: base.yaml, and for Knative types.yaml and
// objects.yaml.
func (m maker) manifests(ctx context.Context) error {
	all := map[string][]byte{"base.yaml": ownBase}
	var err error
	if all["types.yaml"], err = m.gather(ctx, types); err != nil {
		return err
	}
	if all["objects.yaml"], err = m.gather(ctx, objects); err != nil {
		return err
	}
	all["objects.yaml"] = join(join(all["objects.yaml"], ownKnative), ownIngress)
	for name, data := range all {
		if err := os.WriteFile(filepath.Join(m.dir, name), data, 0o644); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
	}
	return nil
}

func (m maker) gather(ctx context.Context, sources []source) ([]byte, error) {
	var all []byte
	for _, s := range sources {
		dir, err := m.moduleFolder(ctx, s.module)
		if err != nil {
			return nil, err
		}
		files, err := filepath.Glob(filepath.Join(dir, s.files))
		if err != nil || files == nil {
			return nil, fmt.Errorf("find %s in %s: there are none of this name; look at this version's files", s.files, s.module)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read Knative's manifests: %w", err)
			}
			if !isReplaced(file) {
				all = join(all, named(data))
			}
		}
	}
	return all, nil
}

func isReplaced(file string) bool {
	for _, name := range replaced {
		if filepath.Base(file) == name && filepath.Base(filepath.Dir(file)) == "configmaps" {
			return true
		}
	}
	return false
}

var builtByKo = regexp.MustCompile(`ko://knative\.dev/serving/cmd/([a-z-]+)`)

// named gives the images in a manifest our names, as ko does in Knative's own releases.
func named(manifest []byte) []byte {
	return builtByKo.ReplaceAllFunc(manifest, func(found []byte) []byte {
		name := builtByKo.FindSubmatch(found)[1]
		return []byte(ImageName(string(name)))
	})
}

// join appends a manifest to others.
func join(all, manifest []byte) []byte {
	manifest = bytes.TrimPrefix(bytes.TrimSpace(manifest), []byte("---\n"))
	all = append(all, manifest...)
	return append(all, "\n---\n"...)
}

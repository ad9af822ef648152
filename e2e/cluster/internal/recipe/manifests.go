package recipe

import (
	"bytes"
	"context"
	_ "embed" // our manifests
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// The files of Knative that are applied as they are, but for the images'
// names. Types come first, as objects of them follow.
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

// stages are what kwok plays: nodes that are well, and pods that run, and
// succeed if they are a Job's.
var stages = []source{
	{"sigs.k8s.io/kwok", "kustomize/stage/node/fast/node*.yaml"},
	{"sigs.k8s.io/kwok", "kustomize/stage/node/heartbeat-with-lease/node*.yaml"},
	{"sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod*.yaml"},
}

// source is files of a module.
type source struct{ module, files string }

// replaced are configurations of which we bring our own.
var replaced = [...]string{"autoscaler.yaml", "domain.yaml"}

// Our own manifests. What every cluster has needs no type of Knative's.
var (
	//go:embed manifests/base.yaml
	ownBase []byte
	//go:embed manifests/knative.yaml
	ownKnative []byte
	//go:embed manifests/ingress.yaml
	ownIngress []byte
)

// manifests writes what is applied to a new cluster: base.yaml, and for
// Knative types.yaml, then objects.yaml.
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

// named gives the images in a manifest the names that ours have. Knative's own
// release does it by ko.
func named(manifest []byte) []byte {
	return builtByKo.ReplaceAllFunc(manifest, func(found []byte) []byte {
		name := builtByKo.FindSubmatch(found)[1]
		return []byte(ImageName(string(name)))
	})
}

// join puts a manifest behind others.
func join(all, manifest []byte) []byte {
	manifest = bytes.TrimPrefix(bytes.TrimSpace(manifest), []byte("---\n"))
	all = append(all, manifest...)
	return append(all, "\n---\n"...)
}

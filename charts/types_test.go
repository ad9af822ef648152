//go:build slow

package charts_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingconfig "knative.dev/serving/pkg/apis/config"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/yaml"

	"tidemill.dev/config"
)

// podMonitor and prometheusRule are the parts of the Prometheus operator's kinds that the chart
// writes.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodTargetLabels     []string             `json:"podTargetLabels"`
		PodMetricsEndpoints []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    *struct {
				ServerName         string
				InsecureSkipVerify bool
				CA                 *struct{ Secret corev1.SecretKeySelector }
			}
			Authorization *struct{ Credentials corev1.SecretKeySelector }
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []struct {
			Name  string
			Rules []alert
		} `json:"groups"`
	} `json:"spec"`
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// kinds are the kinds that the chart may render. All objects are in the namespace of the chart or in
// that of its runs, and no object defines a new kind.
func kinds() map[string]func() any {
	return map[string]func() any{
		"v1/ConfigMap": func() any { return new(corev1.ConfigMap) }, "v1/Secret": func() any { return new(corev1.Secret) },
		"v1/Service": func() any { return new(corev1.Service) }, "v1/ServiceAccount": func() any { return new(corev1.ServiceAccount) },
		"v1/Namespace": func() any { return new(corev1.Namespace) },
		"v1/Pod":       func() any { return new(corev1.Pod) }, "apps/v1/Deployment": func() any { return new(appsv1.Deployment) },
		"policy/v1/PodDisruptionBudget":            func() any { return new(policyv1.PodDisruptionBudget) },
		"networking.k8s.io/v1/NetworkPolicy":       func() any { return new(networkingv1.NetworkPolicy) },
		"networking.k8s.io/v1/Ingress":             func() any { return new(networkingv1.Ingress) },
		"rbac.authorization.k8s.io/v1/Role":        func() any { return new(rbacv1.Role) },
		"rbac.authorization.k8s.io/v1/RoleBinding": func() any { return new(rbacv1.RoleBinding) },
		"serving.knative.dev/v1/Service":           func() any { return new(servingv1.Service) },
		"monitoring.coreos.com/v1/PodMonitor":      func() any { return new(podMonitor) },
		"monitoring.coreos.com/v1/PrometheusRule":  func() any { return new(prometheusRule) },
	}
}

// rendered returns the objects of a case's golden file.
func rendered(t *testing.T, name string) []any {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, name, strings.ReplaceAll(string(text), "CHANCE", "Q0hBTkNF"))
}

// objects parses the objects of a text of manifests. An unknown field is an error, and a kind that
// the chart must not use is an error too.
func objects(t *testing.T, name, text string) []any {
	t.Helper()
	var all []any
	for _, one := range strings.Split(text, "\n---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(one), &head); err != nil {
			t.Fatalf("%v\n%s", err, one)
		}
		make, known := kinds()[head.APIVersion+"/"+head.Kind]
		if !known {
			t.Errorf("the chart renders a %s of %s, which is not among its kinds", head.Kind, head.APIVersion)
			continue
		}
		object := make()
		if err := yaml.UnmarshalStrict([]byte(one), object); err != nil {
			t.Errorf("%s: %v\n%s", name, err, one)
		}
		all = append(all, object)
	}
	return all
}

// objectsOf returns the objects of one kind.
func objectsOf[T any](all []any) (some []T) {
	for _, o := range all {
		if one, ok := o.(T); ok {
			some = append(some, one)
		}
	}
	return some
}

func TestManifestsAreWhatTheirKindsAre(t *testing.T) {
	for name := range valuesFiles(t) {
		for _, o := range rendered(t, name) {
			m := o.(metav1.Object)
			if !isOfPlace(name, o) || m.GetName() == "" {
				t.Errorf("%s: %T %q is in the namespace %q", name, o, m.GetName(), m.GetNamespace())
			}
			if m.GetLabels()["app.kubernetes.io/instance"] != "tidemill" {
				t.Errorf("%s: %T %q does not say whose it is", name, o, m.GetName())
			}
		}
	}
}

// isOfPlace reports whether an object is in the right namespace. Only rules about runs may be in the
// namespace of runs.
func isOfPlace(name string, o any) bool {
	m := o.(metav1.Object)
	place := "ml"
	switch o.(type) {
	case *corev1.Namespace:
		return name == "everything" && m.GetName() == "ml-runs" && m.GetAnnotations()["helm.sh/resource-policy"] == "keep"
	case *rbacv1.Role, *rbacv1.RoleBinding, *networkingv1.NetworkPolicy:
		if name == "everything" && strings.HasSuffix(m.GetName(), "-runs") {
			place = "ml-runs"
		}
	}
	return m.GetNamespace() == place
}

// Knative's validation accepts the functions.
func TestKnativeTakesTheFunctions(t *testing.T) {
	for name := range valuesFiles(t) {
		functions := objectsOf[*servingv1.Service](rendered(t, name))
		if want := 3; name != "plain" && len(functions) != want {
			t.Errorf("%s: %d functions, want %d", name, len(functions), want)
		}
		for _, f := range functions {
			ctx := context.Background()
			if name == "everything" { // the values of this case enable these features
				ctx = withFeatures(ctx)
			}
			f.SetDefaults(ctx)
			if err := f.Validate(ctx); err != nil {
				t.Errorf("%s: %s: %v", name, f.Name, err)
			}
			if f.Labels["networking.knative.dev/visibility"] != "cluster-local" || f.Spec.Template.Annotations["autoscaling.knative.dev/min-scale"] != "0" {
				t.Errorf("%s: %s may be called from outside, or does not go to zero", name, f.Name)
			}
		}
	}
}

func withFeatures(ctx context.Context) context.Context {
	c := servingconfig.FromContextOrDefaults(ctx)
	f := *c.Features
	f.PodSpecAffinity, f.PodSpecNodeSelector, f.PodSpecTolerations = servingconfig.Enabled, servingconfig.Enabled, servingconfig.Enabled
	f.PodSpecTopologySpreadConstraints, f.PodSpecPriorityClassName = servingconfig.Enabled, servingconfig.Enabled
	c.Features = &f
	return servingconfig.ToContext(ctx, c)
}

// podsOf returns the pods that a case's objects make, by name.
func podsOf(all []any) map[string]*corev1.PodSpec {
	pods := map[string]*corev1.PodSpec{}
	for _, d := range objectsOf[*appsv1.Deployment](all) {
		pods[d.Name] = &d.Spec.Template.Spec
	}
	for _, f := range objectsOf[*servingv1.Service](all) {
		pods[f.Name] = &f.Spec.Template.Spec.PodSpec
	}
	for _, p := range objectsOf[*corev1.Pod](all) {
		pods[p.Name] = &p.Spec
	}
	return pods
}

// Pods conform to Kubernetes' restricted profile, and mount only their own volumes.
func TestPodsAreRestricted(t *testing.T) {
	for name := range valuesFiles(t) {
		for pod, spec := range podsOf(rendered(t, name)) {
			for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
				if err := restricted(c.SecurityContext); err != nil {
					t.Errorf("%s: %s: %v", name, pod, err)
				}
				if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() {
					t.Errorf("%s: %s says nothing of its memory", name, pod)
				}
				for _, m := range c.VolumeMounts {
					if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
						t.Errorf("%s: %s mounts %s, and there is no such volume", name, pod, m.Name)
					}
					if m.SubPath != "" {
						t.Errorf("%s: %s mounts %s by a subPath, which never changes", name, pod, m.Name)
					}
				}
			}
		}
	}
}

func restricted(s *corev1.SecurityContext) error {
	switch {
	case s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot:
		return fmt.Errorf("it may be root")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		return fmt.Errorf("it may become more than it is")
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		return fmt.Errorf("it may write to its image")
	case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0:
		return fmt.Errorf("it keeps capabilities")
	}
	return nil
}

// The controller scales the scorers. If another object set their replicas, the next upgrade would
// reset them.
func TestNobodyButTheControllerScalesScorers(t *testing.T) {
	found := 0
	for name := range valuesFiles(t) {
		all := rendered(t, name)
		c := configOf(t, all)
		for _, d := range objectsOf[*appsv1.Deployment](all) {
			scorer, is := d.Labels["tidemill.dev/scorer"]
			if !is {
				if d.Spec.Replicas == nil {
					t.Errorf("%s: nobody says how many replicas %s has", name, d.Name)
				}
				continue
			}
			found++
			if d.Spec.Replicas != nil {
				t.Errorf("%s: %s says how many replicas it has", name, d.Name)
			}
			if d.Labels["tidemill.dev/install"] != install(c) {
				t.Errorf("%s: %s is of the install %q, and the config's is %q", name, d.Name, d.Labels["tidemill.dev/install"], install(c))
			}
			if !slices.ContainsFunc(c.Scorers, func(s config.Scorer) bool { return s.Name == scorer }) {
				t.Errorf("%s: there is no scorer %s", name, scorer)
			}
		}
	}
	if found != 3 {
		t.Errorf("%d Deployments of scorers in all cases, want 3", found)
	}
}

func install(c *config.Config) string {
	names, err := c.Names()
	if err != nil {
		return err.Error()
	}
	return names.Install()
}

// configOf returns the config that the processes read.
func configOf(t *testing.T, all []any) *config.Config {
	t.Helper()
	maps := objectsOf[*corev1.ConfigMap](all)
	if len(maps) != 1 {
		t.Fatalf("there are %d ConfigMaps", len(maps))
	}
	c, err := config.Parse("tidemill.yaml", []byte(maps[0].Data["tidemill.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Prometheus has a token that opens nothing but the metrics, and gives it only to a gateway whose
// certificate it has checked.
func TestPrometheusIsGivenLittle(t *testing.T) {
	for name := range valuesFiles(t) {
		for _, m := range objectsOf[*podMonitor](rendered(t, name)) {
			e := m.Spec.PodMetricsEndpoints[0]
			if e.TLSConfig != nil && (e.TLSConfig.InsecureSkipVerify || e.TLSConfig.ServerName != "tidemill.example") {
				t.Errorf("%s: %s does not check the certificate: %+v", name, m.Name, e.TLSConfig)
			}
			if (e.Scheme == "https") != (e.TLSConfig != nil) {
				t.Errorf("%s: %s calls by %q with %+v", name, m.Name, e.Scheme, e.TLSConfig)
			}
		}
	}
	for _, s := range objectsOf[*corev1.Secret](objects(t, "minimal", render(t, "testdata/minimal.values.yaml"))) {
		text, there := s.Data["access.yaml"]
		if !there {
			continue
		}
		a, err := config.ParseAccess("access.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range a.Tokens {
			if one.Name == "prometheus" && !slices.Equal(one.Roles, []string{"metrics"}) {
				t.Errorf("Prometheus may %v", one.Roles)
			}
		}
		return
	}
	t.Error("there is no access file")
}

// The access file of the chart has the tokens, the people and the teams of the values.
func TestAccessFileOfTheValues(t *testing.T) {
	for _, s := range objectsOf[*corev1.Secret](objects(t, "everything", render(t, "testdata/everything.values.yaml"))) {
		text, there := s.Data["access.yaml"]
		if !there {
			continue
		}
		a, err := config.ParseAccess("access.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Tokens) != 3 || a.OIDC == nil || len(a.Teams) != 1 || a.Teams[0].Name != "interns" {
			t.Errorf("the access file is\n%s", text)
		}
		return
	}
	t.Error("there is no access file")
}

// Scorers have different Deployments, also if their names differ only in the last of 40 letters.
func TestLongNamesOfScorers(t *testing.T) {
	one := "config.scorers." + strings.Repeat("a", 39)
	names := map[string]string{}
	for _, d := range objectsOf[*appsv1.Deployment](objects(t, "minimal", render(t, "testdata/minimal.values.yaml",
		"--set", one+"b.from=events,"+one+"b.to=scored,"+one+"b.model=m,"+one+"c.from=events,"+one+"c.to=scored,"+one+"c.model=m"))) {
		if scorer := d.Labels["tidemill.dev/scorer"]; scorer != "" {
			names[d.Name] = scorer
		}
	}
	if len(names) != 2 {
		t.Errorf("the Deployments of two scorers are %v", names)
	}
}

// The limit of a process has room for the memory that its arguments name, and for the rest.
func TestMemoryAddsUp(t *testing.T) {
	// Memory besides models. A gateway also holds requests and unacknowledged events, up to the limits
	// of its package.
	const base, requests = 128 << 20, (256 + 48) << 20
	for name := range valuesFiles(t) {
		for pod, spec := range podsOf(rendered(t, name)) {
			c := spec.Containers[0]
			limit, needs := c.Resources.Limits.Memory().Value(), int64(base)
			if slices.Contains(c.Args, "gateway") {
				needs += requests
			}
			models := slices.ContainsFunc(c.Args, func(a string) bool { return a == "gateway" || a == "scorer" || a == "promote" })
			for _, a := range c.Args {
				if size, is := strings.CutPrefix(a, "--model-memory="); is {
					needs, models = needs+sizeOf(t, size), false
				}
			}
			if models {
				t.Errorf("%s: %s loads models, and nothing says how much memory they may take", name, pod)
			}
			for _, e := range c.Env {
				if e.Name == "GOMEMLIMIT" {
					needs = max(needs, sizeOf(t, e.Value)+64<<20)
				}
			}
			if needs > limit {
				t.Errorf("%s: %s needs %d MiB and has %d MiB", name, pod, needs>>20, limit>>20)
			}
		}
	}
}

// sizeOf reads a size as our flags and Go write it: 256MiB.
func sizeOf(t *testing.T, text string) int64 {
	t.Helper()
	q, err := resource.ParseQuantity(strings.TrimSuffix(text, "B"))
	if err != nil {
		t.Fatal(err)
	}
	return q.Value()
}

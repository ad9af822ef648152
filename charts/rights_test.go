//go:build slow

package charts_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// componentRights are the only rights of each component. docs/cluster.md lists them, and a test
// checks them on a real API server.
func componentRights() map[string][]string {
	return map[string][]string{
		"train": {
			"batch/jobs: create delete get",
			"networking.k8s.io/networkpolicies: create",
			"pods: get list patch",
			"secrets: create",
			"services: create",
		},
		"dispatcher": {"serving.knative.dev/services: list watch"},
		"controller": {
			"apps/deployments/scale: patch",
			"apps/deployments: list watch",
			"batch/jobs: create delete get list watch",
			"networking.k8s.io/networkpolicies: create",
			"pods: get list patch watch",
			"secrets: create",
			"services: create",
		},
		"gateway": nil, "scorer": nil, "promote": nil, "forget": nil,
	}
}

func TestRights(t *testing.T) {
	for name := range valuesFiles(t) {
		all := rendered(t, name)
		want := maps.Clone(componentRights())
		if name == "plain" {
			want["dispatcher"] = nil // no rights without Knative
		}
		if name == "secrets" { // the values name their own accounts
			if n := len(objectsOf[*rbacv1.Role](all)) + len(objectsOf[*rbacv1.RoleBinding](all)) + len(objectsOf[*corev1.ServiceAccount](all)); n > 0 {
				t.Errorf("%s: %d objects of rights, and none was asked for", name, n)
			}
			continue
		}
		for _, a := range objectsOf[*corev1.ServiceAccount](all) {
			component := a.Name[strings.LastIndex(a.Name, "-")+1:]
			if got := rightsOf(all, a.Name); !slices.Equal(got, want[component]) {
				t.Errorf("%s: %s may %q, and %q is in the table", name, a.Name, got, want[component])
			}
			if component == "train" && name != "plain" {
				continue // a Knative Service cannot request a token itself
			}
			if a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken {
				t.Errorf("%s: whoever runs as %s has a token without asking", name, a.Name)
			}
		}
		for pod, spec := range podsOf(all) {
			may := len(rightsOf(all, spec.ServiceAccountName)) > 0
			told := spec.AutomountServiceAccountToken
			if may != (told == nil || *told) {
				t.Errorf("%s: %s has rights: %t, and its pods have a token: %v", name, pod, may, told)
			}
			if asks := slices.Contains(spec.Containers[0].Args, "--kubernetes"); asks != may {
				t.Errorf("%s: %s speaks to the API server: %t, and has rights: %t", name, pod, asks, may)
			}
		}
	}
}

// rightsOf returns the rights of an account, sorted.
func rightsOf(all []any, account string) (rights []string) {
	for _, b := range objectsOf[*rbacv1.RoleBinding](all) {
		if b.RoleRef.Kind != "Role" || !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Kind == "ServiceAccount" && s.Name == account }) {
			continue
		}
		for _, r := range objectsOf[*rbacv1.Role](all) {
			if r.Name != b.RoleRef.Name {
				continue
			}
			for _, rule := range r.Rules {
				verbs := slices.Sorted(slices.Values(rule.Verbs))
				for _, resource := range rule.Resources {
					if g := rule.APIGroups[0]; g != "" {
						resource = g + "/" + resource
					}
					rights = append(rights, resource+": "+strings.Join(verbs, " "))
				}
			}
		}
	}
	slices.Sort(rights)
	return rights
}

// If runs have a separate namespace, no right over Jobs, pods or Secrets reaches the namespace
// of the install. So no process can make a pod that reads the install's Secrets.
func TestRunsCannotReachTheInstallsSecrets(t *testing.T) {
	all := rendered(t, "everything")
	seen := 0
	for _, r := range objectsOf[*rbacv1.Role](all) {
		for _, rule := range r.Rules {
			for _, resource := range rule.Resources {
				of := slices.Contains([]string{"jobs", "pods", "secrets", "services", "networkpolicies"}, resource) && rule.APIGroups[0] != "serving.knative.dev"
				if of {
					seen++
				}
				if want := map[bool]string{true: "ml-runs", false: "ml"}[of]; r.Namespace != want {
					t.Errorf("%s allows %v %s in %s, want %s", r.Name, rule.Verbs, resource, r.Namespace, want)
				}
			}
		}
	}
	if seen != 10 {
		t.Errorf("%d rights over the objects of runs, want 10", seen)
	}
	for pod, spec := range podsOf(all) {
		launches := slices.ContainsFunc(spec.Containers[0].Args, func(a string) bool { return strings.HasPrefix(a, "--agents-at=") })
		if told := slices.Contains(spec.Containers[0].Args, "--runs-namespace=ml-runs"); told != launches {
			t.Errorf("%s launches runs: %t, and knows their namespace: %t", pod, launches, told)
		}
	}
}

// The document has the same table of rights.
func TestRightsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	for component, all := range componentRights() {
		for _, right := range all {
			resource, verbs, _ := strings.Cut(right, ": ")
			row := "| " + component + " | `" + resource + "` | " + strings.ReplaceAll(verbs, " ", ", ") + " |"
			if !strings.Contains(string(text), row) {
				t.Errorf("docs/cluster.md does not have the row\n%s", row)
			}
		}
	}
}

// Every account is used by a Deployment or a Knative Service.
func TestAccountsAreUsed(t *testing.T) {
	all := rendered(t, "everything")
	used := map[string]bool{}
	for _, d := range objectsOf[*appsv1.Deployment](all) {
		used[d.Spec.Template.Spec.ServiceAccountName] = true
	}
	for _, f := range objectsOf[*servingv1.Service](all) {
		used[f.Spec.Template.Spec.ServiceAccountName] = true
	}
	for _, a := range objectsOf[*corev1.ServiceAccount](all) {
		if !used[a.Name] {
			t.Errorf("nobody runs as %s", a.Name)
		}
	}
}

//go:build cluster

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// accountRights returns what each of our service accounts may do in our namespace, as verbs by
// group/resource. Everything else is forbidden.
func accountRights() map[string]map[string]string {
	return map[string]map[string]string{
		"gateway": {},
		"scorer":  {},
		"promote": {},
		"forget":  {},
		"dispatcher": {
			"serving.knative.dev/services": "list watch",
		},
		"train": {
			"batch/jobs": "create delete get",
			"/pods":      "get list patch",
			"/services":  "create",
			"/secrets":   "create",

			"networking.k8s.io/networkpolicies": "create",
		},
		"controller": {
			"batch/jobs":             "create delete get list watch",
			"/pods":                  "get list patch watch",
			"/services":              "create",
			"/secrets":               "create",
			"apps/deployments":       "list watch",
			"apps/deployments/scale": "patch",

			"networking.k8s.io/networkpolicies": "create",
		},
	}
}

// forbiddenRequests returns dangerous requests, which are checked one by one.
func forbiddenRequests() []authorizationv1.ResourceAttributes {
	return []authorizationv1.ResourceAttributes{
		{Namespace: namespace, Verb: "get", Resource: "secrets"},
		{Namespace: namespace, Verb: "list", Resource: "secrets"},
		{Namespace: namespace, Verb: "create", Resource: "pods"},
		{Namespace: namespace, Verb: "create", Resource: "pods", Subresource: "exec"},
		{Namespace: namespace, Verb: "get", Resource: "pods", Subresource: "log"},
		{Namespace: namespace, Verb: "create", Resource: "serviceaccounts", Subresource: "token"},
		{Namespace: namespace, Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
		{Namespace: namespace, Verb: "impersonate", Resource: "serviceaccounts"},
		{Namespace: namespace, Verb: "update", Resource: "configmaps"},
		{Namespace: namespace, Verb: "create", Group: "serving.knative.dev", Resource: "services"},
		{Namespace: namespace, Verb: "update", Group: "apps", Resource: "deployments"},
		{Namespace: "default", Verb: "create", Group: "batch", Resource: "jobs"},
		{Namespace: "default", Verb: "list", Resource: "pods"},
		{Namespace: "kube-system", Verb: "get", Resource: "secrets"},
		{Verb: "list", Resource: "nodes"},
		{Verb: "list", Resource: "namespaces"},
		{Verb: "create", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	}
}

// The test sends requests to the API server as each of our accounts.
func TestAccountsMayDoWhatTheyNeedAndNothingElse(t *testing.T) {
	w := cluster(t)
	for account, want := range accountRights() {
		t.Run(account, func(t *testing.T) {
			as, err := dialServer(w.sandbox.Kubeconfig, fmt.Sprintf("system:serviceaccount:%s:%s-%s", namespace, release, account))
			must(t, err)
			sameRights(t, want, rulesOf(t, as))
			for _, asked := range forbiddenRequests() {
				review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked}}
				must(t, as.authorization.Post().Resource("selfsubjectaccessreviews").Body(review).Do(t.Context()).Into(review))
				if review.Status.Allowed {
					t.Errorf("%s may %s %s/%s %s in %q", account, asked.Verb, asked.Group, asked.Resource, asked.Subresource, asked.Namespace)
				}
			}
		})
	}
}

func sameRights(t *testing.T, want, may map[string]string) {
	t.Helper()
	for resource, verbs := range may {
		if want[resource] != verbs {
			t.Errorf("it may %q %s, and needs %q", verbs, resource, want[resource])
		}
	}
	for resource, verbs := range want {
		if may[resource] == "" {
			t.Errorf("it needs %q %s, and may not", verbs, resource)
		}
	}
}

// rulesOf returns an account's rights, without the right of every account to read its own name and
// rights.
func rulesOf(t *testing.T, as *apiServer) map[string]string {
	t.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	must(t, as.authorization.Post().Resource("selfsubjectrulesreviews").Body(review).Do(t.Context()).Into(review))
	if review.Status.Incomplete {
		t.Errorf("the API server does not know all rules: %s", review.Status.EvaluationError)
	}
	verbs := map[string][]string{}
	for _, rule := range review.Status.ResourceRules {
		for _, group := range rule.APIGroups {
			if group == authorizationv1.GroupName || group == "authentication.k8s.io" {
				continue
			}
			for _, resource := range rule.Resources {
				name := group + "/" + resource
				if len(rule.ResourceNames) > 0 {
					name += " " + strings.Join(rule.ResourceNames, ",")
				}
				verbs[name] = append(verbs[name], rule.Verbs...)
			}
		}
	}
	all := map[string]string{}
	for name, v := range verbs {
		slices.Sort(v)
		all[name] = strings.Join(slices.Compact(v), " ")
	}
	return all
}

package main

import (
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
)

func backend(service string, percent int) v1alpha1.IngressBackendSplit {
	return v1alpha1.IngressBackendSplit{Percent: percent, AppendHeaders: map[string]string{"Knative-Serving-Revision": service},
		IngressBackend: v1alpha1.IngressBackend{ServiceNamespace: "ns", ServiceName: service, ServicePort: intstr.FromInt32(80)}}
}

func ingressOf(hosts []string, paths ...v1alpha1.HTTPIngressPath) *v1alpha1.Ingress {
	return &v1alpha1.Ingress{Spec: v1alpha1.IngressSpec{Rules: []v1alpha1.IngressRule{
		{Hosts: hosts, HTTP: &v1alpha1.HTTPIngressRuleValue{Paths: paths}},
		{Hosts: []string{"without.http"}},
	}}}
}

func to(splits ...v1alpha1.IngressBackendSplit) v1alpha1.HTTPIngressPath {
	return v1alpha1.HTTPIngressPath{Splits: splits}
}

func TestFind(t *testing.T) {
	tagged := to(backend("tagged", 100))
	tagged.Headers = map[string]v1alpha1.HeaderMatch{"Knative-Serving-Tag": {Exact: "blue"}}
	deep := to(backend("deep", 100))
	deep.Path = "/deep"
	var table table
	table.set([]*v1alpha1.Ingress{
		ingressOf([]string{"hello.ns", "hello.ns.svc.cluster.local"}, to(backend("old", 30), backend("new", 70)), tagged, deep),
		ingressOf([]string{"one.ns"}, to(backend("only", 0))),
	})
	for _, c := range []struct {
		host, path, tag string
		share           int
		want            string
	}{
		{"hello.ns", "/", "", 0, "old"},
		{"hello.ns", "/", "", 29, "old"},
		{"hello.ns:80", "/", "", 30, "new"},
		{"hello.ns.svc.cluster.local", "/", "", 99, "new"},
		{"hello.ns", "/", "blue", 0, "tagged"},
		{"hello.ns", "/", "green", 0, "old"},
		{"hello.ns", "/deep/down", "blue", 0, "deep"},
		{"one.ns", "/", "", 99, "only"},
		{"nobody.ns", "/", "", 0, ""},
		{"without.http", "/", "", 0, ""},
	} {
		r := httptest.NewRequest("POST", "http://"+c.host+c.path, nil)
		r.Header.Set("Knative-Serving-Tag", c.tag)
		_, split, found := table.find(r, c.share)
		if found != (c.want != "") || split.headers["Knative-Serving-Revision"] != c.want {
			t.Errorf("%+v goes to %v", c, split.url)
		}
		if found && split.url.String() != "http://"+c.want+".ns.svc.cluster.local:80" {
			t.Errorf("%+v goes to %v", c, split.url)
		}
	}
}

func TestFindWithoutTable(t *testing.T) {
	var table table
	if _, _, found := table.find(httptest.NewRequest("GET", "http://a", nil), 0); found {
		t.Error("something is found before anything was listed")
	}
}

func TestReadied(t *testing.T) {
	given := ingressOf(nil)
	given.Generation = 4
	got := readied(given)
	if !got.IsReady() || got.Status.PrivateLoadBalancer.Ingress[0].DomainInternal != internal {
		t.Errorf("the status is %+v", got.Status)
	}
	if given.Status.ObservedGeneration != 0 {
		t.Error("it changes what it was given")
	}
}

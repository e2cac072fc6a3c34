// Package conformance runs the conformance suite of the Gateway API for a gateway whose listeners are TCP or UDP.
// docs/conformance/README.md describes what is run. deploy/scripts/conformance.sh builds and calls it, with the suite's
// own flags.
package conformance

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"reflect"
	"slices"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

// needHTTP are the tests of the two profiles that pass only if a Gateway serves HTTP or HTTPS, although they don't
// require the feature HTTPRoute. The report lists those of supported features as skipped.
var needHTTP = []string{
	// The core feature Gateway.
	"GatewayInvalidRouteKind",
	"GatewayInvalidTLSConfiguration",
	"GatewayListenerUnsupportedProtocol",
	"GatewayModifyListeners",
	"GatewaySecretInvalidReferenceGrant",
	"GatewaySecretMissingReferenceGrant",
	"GatewaySecretReferenceGrantAllInNamespace",
	"GatewaySecretReferenceGrantSpecific",
	// Extended features.
	"GatewayOptionalAddressValue",
	"GatewayStaticAddresses",
	"ListenerSetAllowedNamespaceNone",
	"ListenerSetAllowedNamespaceSame",
	"ListenerSetAllowedNamespaceSelector",
	"ListenerSetDefaultNotAllowed",
	"ListenerSetHostnameConflict",
	"ListenerSetProtocolConflict",
	"ListenerSetReferenceGrant",
}

func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	options.ManifestFS = []fs.FS{annotated{&conformance.Manifests}}
	options.SkipTests = append(options.SkipTests, needHTTP...)
	conformance.RunConformanceWithOptions(t, options)
}

// annotated is the suite's manifests in which Gateways without a TCP or UDP listener have the suite's annotation that
// excludes them from its wait for all Gateways of a namespace. It changes nothing else.
type annotated struct{ fs.FS }

func (a annotated) Open(name string) (fs.File, error) {
	text, err := fs.ReadFile(a.FS, name)
	if err != nil {
		return nil, err
	}
	if text, err = annotate(text); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fstest.MapFS{name: {Data: text}}.Open(name)
}

func annotate(text []byte) ([]byte, error) {
	var out bytes.Buffer
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := unstructured.Unstructured{}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		} else if err != nil {
			return nil, err
		}
		if object.Object == nil {
			continue
		}
		if object.GetKind() == "Gateway" && !hasLayer4Listener(object) {
			annotations := object.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[kubernetes.GatewayExcludedFromReadinessChecks] = "true"
			object.SetAnnotations(annotations)
		}
		document, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(document)
	}
}

func hasLayer4Listener(gateway unstructured.Unstructured) bool {
	listeners, _, _ := unstructured.NestedSlice(gateway.Object, "spec", "listeners")
	for _, listener := range listeners {
		if fields, ok := listener.(map[string]any); ok && (fields["protocol"] == "TCP" || fields["protocol"] == "UDP") {
			return true
		}
	}
	return false
}

func TestSkippedTestsExist(t *testing.T) {
	for _, name := range needHTTP {
		isThis := func(test suite.ConformanceTest) bool { return test.ShortName == name }
		if !slices.ContainsFunc(tests.ConformanceTests, isThis) {
			t.Errorf("the suite has no test %s", name)
		}
	}
}

func TestOnlyGatewaysWithoutLayer4AreAnnotated(t *testing.T) {
	names, err := fs.Glob(conformance.Manifests, "tests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range append(names, "base/manifests.yaml") {
		before, after := objects(t, conformance.Manifests, name), objects(t, annotated{&conformance.Manifests}, name)
		if len(before) != len(after) {
			t.Fatalf("%s: %d objects became %d", name, len(before), len(after))
		}
		for i, object := range after {
			if object.GetAnnotations()[kubernetes.GatewayExcludedFromReadinessChecks] == "true" {
				found[object.GetName()] = true
			}
			for _, one := range []unstructured.Unstructured{object, before[i]} {
				if annotations := one.GetAnnotations(); one.GetKind() == "Gateway" {
					delete(annotations, kubernetes.GatewayExcludedFromReadinessChecks)
					if len(annotations) == 0 {
						annotations = nil
					}
					one.SetAnnotations(annotations)
				}
			}
			if !reflect.DeepEqual(object, before[i]) {
				t.Errorf("%s: %s %s is changed", name, object.GetKind(), object.GetName())
			}
		}
	}
	for name, isExpected := range map[string]bool{
		"same-namespace": true, "backend-namespaces": true, "tcp-mixed-protocol-gateway": true,
		"udp-gateway": false, "tcp-weighted-gateway": false,
	} {
		if found[name] != isExpected {
			t.Errorf("Gateway %s is excluded: %v", name, found[name])
		}
	}
}

func objects(t *testing.T, files fs.FS, name string) (objects []unstructured.Unstructured) {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := unstructured.Unstructured{}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}

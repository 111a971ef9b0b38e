// Command objects reads a stream of YAML documents, and decodes those of Kubernetes' own kinds strictly: a
// field that the oldest supported version does not have is an error. The version is that of k8s.io/api.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	n, err := run(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "objects:", err)
		os.Exit(1)
	}
	fmt.Println(n)
}

// run returns the number of objects that it has decoded.
func run(stream io.Reader) (decoded int, err error) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var errs []error
	for reader := yaml.NewYAMLReader(bufio.NewReader(stream)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return decoded, errors.Join(errs...)
		}
		if err != nil {
			return decoded, err
		}
		switch _, _, err := decoder.Decode(document, nil, nil); {
		case err == nil:
			decoded++
		case runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err): // a custom resource, or only comments
		default:
			errs = append(errs, fmt.Errorf("%w in\n%s", err, document))
		}
	}
}

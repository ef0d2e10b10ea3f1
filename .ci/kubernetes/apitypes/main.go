// Command apitypes prints the table of Kubernetes' API types that the embedded API server decodes requests with:
// crates/embedded/src/server/types/table.txt. It reads the types of the pinned version by reflection. To renew the table:
//
//	cd .ci/kubernetes && go run ./apitypes >../../crates/embedded/src/server/types/table.txt
//
// The table's first lines explain its form.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"sort"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

const header = `# Written by .ci/kubernetes/apitypes from the Go types of Kubernetes' API; see there for how to renew it.
# ": VERSION KIND TYPE" names the type of a kind. A line of one word begins a type. The other lines are its fields:
# protobuf number (0: none), JSON name, type, and "merge" with its key for lists that a strategic merge patch merges.
# A name ends in "!" if Go writes the field even when it is empty; "=" stands for the fields of an inlined type.
# In types, "*" is a pointer, "[]" a list, "{}" a map; "=" is followed by the name that Go gives the type.
`

// The group versions that the embedded API server serves.
var served = []string{
	"v1", "admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1", "apps/v1",
	"authentication.k8s.io/v1", "authorization.k8s.io/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1",
	"coordination.k8s.io/v1", "discovery.k8s.io/v1", "events.k8s.io/v1", "networking.k8s.io/v1", "node.k8s.io/v1",
	"policy/v1", "rbac.authorization.k8s.io/v1", "resource.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1",
}

// Types with a JSON form of their own.
var special = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                                             "time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                                        "microtime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":                                         "duration",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                                         "raw",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":                                         "quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                                       "intstr",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":                                          "raw",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":                         "raw",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrArray":       "schema-or-list",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrBool":        "schema-or-bool",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrStringArray": "schema-or-strings",
}

type table struct {
	out  *bufio.Writer
	seen map[string]bool
	todo []reflect.Type
}

func main() {
	for _, add := range []func(*runtime.Scheme) error{apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(scheme.Scheme); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	t := table{out: bufio.NewWriter(os.Stdout), seen: map[string]bool{}}
	defer t.out.Flush()
	fmt.Fprint(t.out, header)
	var kinds []string
	for kind, goType := range scheme.Scheme.AllKnownTypes() {
		version := kind.GroupVersion().String()
		// Every version has options and lists; the options of a deletion are the same in all of them.
		options := strings.HasSuffix(kind.Kind, "Options") && (version != "v1" || kind.Kind != "DeleteOptions")
		ofMeta := strings.Contains(goType.PkgPath(), "apimachinery") && kind.Kind != "DeleteOptions"
		if !slices.Contains(served, version) || options || ofMeta || strings.HasSuffix(kind.Kind, "List") {
			continue
		}
		kinds = append(kinds, fmt.Sprintf(": %s %s %s", version, kind.Kind, t.name(goType)))
	}
	t.name(reflect.TypeFor[metav1.ObjectMeta]())
	sort.Strings(kinds)
	for _, line := range kinds {
		fmt.Fprintln(t.out, line)
	}
	for len(t.todo) > 0 {
		sort.Slice(t.todo, func(i, j int) bool { return plain(t.todo[i]) < plain(t.todo[j]) })
		next := t.todo[0]
		t.todo = t.todo[1:]
		t.fields(next)
	}
}

// name gives a type's name in the table and notes that the table needs it.
func (t *table) name(goType reflect.Type) string {
	name := plain(goType)
	if !t.seen[name] {
		t.seen[name] = true
		t.todo = append(t.todo, goType)
	}
	return name
}

// plain is group and version of the type's package, and its own name: core.v1.Pod.
func plain(goType reflect.Type) string {
	dir, version := path.Split(goType.PkgPath())
	return path.Base(dir) + "." + version + "." + goType.Name()
}

func (t *table) fields(goType reflect.Type) {
	fmt.Fprintln(t.out, plain(goType))
	for at := range goType.NumField() {
		field := goType.Field(at)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		inlined := strings.Contains(options, "inline") || field.Anonymous && name == ""
		if name == "-" || inlined && field.Type.Name() == "TypeMeta" {
			continue
		}
		number := "0"
		if parts := strings.Split(field.Tag.Get("protobuf"), ","); len(parts) > 1 {
			number = parts[1]
		}
		ofType := t.of(field.Type)
		merge := ""
		if strings.Contains(field.Tag.Get("patchStrategy"), "merge") {
			merge = strings.TrimRight(" merge "+field.Tag.Get("patchMergeKey"), " ")
		}
		switch {
		case inlined:
			name = "="
		case !omitted(field.Type, options):
			name += "!"
		}
		fmt.Fprintln(t.out, number, name, ofType+merge)
	}
}

// omitted says whether Go leaves an empty field out. A struct is never empty to "omitempty".
func omitted(goType reflect.Type, options string) bool {
	empty := strings.Contains(options, "omitempty") && goType.Kind() != reflect.Struct
	return empty || strings.Contains(options, "omitzero")
}

func (t *table) of(goType reflect.Type) string {
	if known, found := special[goType.PkgPath()+"."+goType.Name()]; found {
		return known
	}
	named := ""
	if goType.PkgPath() != "" {
		named = "=" + goType.String()
	}
	switch goType.Kind() {
	case reflect.Pointer:
		return "*" + t.of(goType.Elem())
	case reflect.Slice:
		if goType.Elem().Kind() == reflect.Uint8 {
			return "bytes" + named
		}
		return "[]" + t.of(goType.Elem()) + named
	case reflect.Map:
		if goType.Elem().Kind() == reflect.Slice && goType.Elem().Elem().Kind() == reflect.String {
			return "{}strings" + named // Protobuf has no maps of lists: the list is a message.
		}
		return "{}" + strings.SplitN(t.of(goType.Elem()), "=", 2)[0] + named
	case reflect.Struct:
		return t.name(goType)
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64, reflect.Bool, reflect.String:
		return goType.Kind().String() + named
	}
	panic("a type that the table has no form for: " + goType.String())
}

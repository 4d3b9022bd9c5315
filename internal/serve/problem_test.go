package serve_test

import (
	"fmt"
	"net/http/httptest"

	"github.com/sealpost/sealpost/internal/serve"
)

func ExampleWriteProblem() {
	w := httptest.NewRecorder()
	serve.WriteProblem(w, serve.Problem{Status: 422, Detail: "The endpoint cannot be created.", Code: "bad_endpoint",
		Faults: []serve.Fault{{Pointer: "/url", Detail: "must be https"}}})
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	fmt.Print(w.Body)
	// Output:
	// 422 application/problem+json
	// {"title":"Unprocessable Entity","status":422,"detail":"The endpoint cannot be created.","code":"bad_endpoint","errors":[{"pointer":"/url","detail":"must be https"}]}
}

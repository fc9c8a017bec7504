module github.com/k3infer/k3

go 1.26.8

// Ways to compute one thing, in order of preference: a row each.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

#include "runtime/plan_log.h"

namespace anymps::kernels {

template <class Problem>
struct Route {
    const char* name;
    bool (*supports)(const Problem&);
    void (*launch)(const Problem&);
};

// Of a table's last row.
template <class Problem>
bool always(const Problem&) {
    return true;
}

// Launches the first route that supports the problem; one of them must. op: for ANYMPS_LOG=plan, with the
// problem's to_text() behind it.
template <class Problem, size_t kCount>
void launch_first(const char* op, const Route<Problem> (&routes)[kCount], const Problem& problem) {
    for (const Route<Problem>& route : routes) {
        if (!route.supports(problem)) continue;
        if (runtime::logs_plans()) [[unlikely]]
            runtime::log_plan(op, to_text(problem) + ": " + route.name);
        return route.launch(problem);
    }
    TORCH_INTERNAL_ASSERT(false, op, " has no route for ", to_text(problem));
}

}  // namespace anymps::kernels

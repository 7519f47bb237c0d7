// See fit.h.
#include "simulate/fit.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"

namespace optimus {
namespace {

// A constant that is fitted. Its coordinate x is the logarithm of the constant relative to its prior.
struct Coordinate {
  const ConstantRow* row;
  double prior;
};

class Fitter {
 public:
  Fitter(const FitProblem& problem, const Constants& start, const FitOptions& options)
      : problem_(problem), options_(options), start_(start) {
    const Constants& prior = options.prior;
    for (const ConstantRow& row : constant_rows())
      if (std::find(problem.constant_names.begin(), problem.constant_names.end(), row.name) !=
          problem.constant_names.end())
        coordinates_.push_back({&row, prior.*row.member});
    for (const Coordinate& at : coordinates_) x_.push_back(std::log(start.*at.row->member / at.prior));
  }

  Constants run() {
    double best_cost = cost(x_), damping = 1e-3;
    for (int step = 0; step < options_.steps; ++step) {
      const auto [hessian, gradient] = normal_equations();
      bool is_better = false;
      for (int attempt = 0; attempt < 6 && !is_better; ++attempt) {
        const std::vector<double> candidate = damped_step(hessian, gradient, damping);
        const double candidate_cost = cost(candidate);
        is_better = candidate_cost < best_cost;
        if (is_better) {
          const double gain = best_cost - candidate_cost;
          best_cost = candidate_cost, x_ = candidate, damping = std::max(1e-6, damping / 4);
          if (gain < 1e-5 * best_cost) return constants(x_);
        } else {
          damping *= 8;
        }
      }
      if (!is_better) break;
    }
    return constants(x_);
  }

 private:
  using Vector = std::vector<double>;

  Constants constants(const Vector& x) const {
    Constants result = start_;
    for (std::size_t j = 0; j < coordinates_.size(); ++j) {
      const ConstantRow& row = *coordinates_[j].row;
      result.*row.member = std::clamp(coordinates_[j].prior * std::exp(x[j]), row.min_value, row.max_value);
    }
    return result;
  }

  // Each of two threads computes every second row, because all rows take about the same time.
  Vector residuals(const Vector& x) const {
    const Constants fitted_constants = constants(x);
    Vector result(problem_.measured.size());
    const auto fill = [&](std::size_t begin) {
      for (std::size_t i = begin; i < result.size(); i += 2)
        result[i] = std::log(problem_.predict(i, fitted_constants) / problem_.measured[i]);
    };
    std::thread second_thread(fill, 1);
    fill(0);
    second_thread.join();
    return result;
  }

  // |r|, smoothed near 0 so that it is differentiable.
  double smoothed_abs(double residual) const {
    return std::sqrt(residual * residual + options_.noise * options_.noise) - options_.noise;
  }
  double prior_weight() const { return options_.noise / (options_.spread * options_.spread); }

  double cost(const Vector& x) const {
    const Vector r = residuals(x);
    double sum = 0;
    for (std::size_t i = 0; i < r.size(); ++i) sum += problem_.weights[i] * smoothed_abs(r[i]);
    for (const double x_j : x) sum += 0.5 * prior_weight() * x_j * x_j;
    return sum;
  }

  std::pair<std::vector<Vector>, Vector> normal_equations() const {
    const std::size_t n = coordinates_.size();
    const Vector r = residuals(x_);
    std::vector<Vector> slopes(n);
    constexpr double kStep = 0.02;
    for (std::size_t j = 0; j < n; ++j) {
      Vector shifted_x = x_;
      shifted_x[j] += kStep;
      slopes[j] = residuals(shifted_x);
      for (std::size_t i = 0; i < r.size(); ++i) slopes[j][i] = (slopes[j][i] - r[i]) / kStep;
    }
    std::vector<Vector> hessian(n, Vector(n));
    Vector gradient(n);
    for (std::size_t i = 0; i < r.size(); ++i) {
      const double weight = problem_.weights[i] / (smoothed_abs(r[i]) + options_.noise);
      for (std::size_t j = 0; j < n; ++j) {
        gradient[j] += weight * slopes[j][i] * r[i];
        for (std::size_t k = 0; k < n; ++k) hessian[j][k] += weight * slopes[j][i] * slopes[k][i];
      }
    }
    for (std::size_t j = 0; j < n; ++j)
      hessian[j][j] += prior_weight(), gradient[j] += prior_weight() * x_[j];
    return {hessian, gradient};
  }

  // Returns x_ minus the solution of the damped normal equations, by Gaussian elimination, clamped to the
  // bounds.
  Vector damped_step(std::vector<Vector> a, Vector b, double damping) const {
    const std::size_t n = b.size();
    for (std::size_t j = 0; j < n; ++j) a[j][j] *= 1 + damping;
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t i = j + 1; i < n; ++i) {
        const double factor = a[i][j] / a[j][j];
        for (std::size_t k = j; k < n; ++k) a[i][k] -= factor * a[j][k];
        b[i] -= factor * b[j];
      }
    Vector candidate = x_;
    for (std::size_t j = n; j-- > 0;) {
      for (std::size_t k = j + 1; k < n; ++k) b[j] -= a[j][k] * b[k];
      b[j] /= a[j][j];
    }
    for (std::size_t j = 0; j < n; ++j) {
      const ConstantRow& row = *coordinates_[j].row;
      candidate[j] =
          std::clamp(x_[j] - std::clamp(b[j], -0.5, 0.5), std::log(row.min_value / coordinates_[j].prior),
                     std::log(row.max_value / coordinates_[j].prior));
    }
    return candidate;
  }

  const FitProblem& problem_;
  const FitOptions options_;
  const Constants start_;
  std::vector<Coordinate> coordinates_;
  Vector x_;
};

}  // namespace

Constants fit(const FitProblem& problem, const Constants& start, const FitOptions& options) {
  ensure(problem.measured.size() == problem.weights.size(), "{} measurements and {} weights",
         problem.measured.size(), problem.weights.size());
  return Fitter(problem, start, options).run();
}

}  // namespace optimus
